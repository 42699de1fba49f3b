#include <filesystem>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/table.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/parse/set_keys.h"
#include "dovetail/data/text/prepare.h"
#include "dovetail/data/text/tokenizer.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/resolve/load_config.h"
#include "dovetail/train/run/progress.h"

namespace dovetail::cli {
namespace {

constexpr int kBarCells = 24;

/// Returns "tokenizing  ━━━━━━━━╸━━━━  56.1 of 74.2 MB  3,914 documents".
std::string progress_line(const data::PrepareProgress& progress) {
  const double share = progress.bytes == 0 ? 0
                                           : static_cast<double>(progress.bytes_done) /
                                                 static_cast<double>(progress.bytes);
  return fmt::format(
      " {}  {}  {} of {}  {} documents", progress.stage, train::progress_bar(share, kBarCells),
      format_bytes(static_cast<double>(progress.bytes_done)),
      format_bytes(static_cast<double>(progress.bytes)), format_grouped(progress.documents_done));
}

class PrepareCommand : public Command {
 public:
  std::string name() const override { return "prepare"; }
  std::string summary() const override { return "Turn text files into memory-mapped token shards"; }
  std::string example() const override {
    return "dovetail prepare docs/ 'src/**/*.py' --out data/mine --tokenizer bpe --vocab-size 4096";
  }

  void declare(Arguments& arguments) override {
    arguments
        .positional("paths", &paths_,
                    "Files, folders or globs: .txt, .md, source code, .jsonl, .json, .parquet; "
                    "also gzip, zstd, bzip2")
        .completes(Completion::kFile);
    arguments.option("--out", "FOLDER", &out_, "Folder to make").completes(Completion::kFolder);
    arguments
        .option("--config", "FILE", &config_, "Prepare the data of this config instead of paths")
        .completes(Completion::kFile);
    arguments.option("--set", "KEY=VALUE", &overrides_,
                     "A key of the config, such as data.validation_fraction=0.1; repeatable");
    arguments
        .option("--tokenizer", "KIND|FILE", &tokenizer_,
                "bytes, bpe or sentencepiece (trained on the text), or a tokenizer.json or .model "
                "to use")
        .completes(Completion::kFile);
    arguments
        .option("--vocab-size", "N", &vocab_size_, "Vocabulary size of a trained tokenizer (2048)")
        .range(1, 1e7);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    const train::RunConfig config = resolved();
    std::filesystem::path folder = !out_.empty() ? out_ : config.data.path;
    if (folder.empty()) folder = std::filesystem::path("data") / config.run.name;
    train::TerminalLine line;
    const data::PrepareResult result =
        data::prepare(config.data, folder, [&](const data::PrepareProgress& progress) {
          if (line.on_terminal()) line.show(progress_line(progress));
        });
    line.clear();
    if (json_) {
      print_json(to_json(result));
    } else {
      print_summary(result);
    }
  }

 private:
  /// Returns the config from --config, or from paths and options, which replace keys of [data].
  train::RunConfig resolved() const {
    if (config_.empty() == paths_.empty()) {
      throw UserError(config_.empty() ? "nothing to prepare: no paths and no --config"
                                      : "both paths and --config are given",
                      "for example: " + example());
    }
    check_overrides();
    if (!config_.empty()) {
      user_check(tokenizer_.empty() && vocab_size_ == 0,
                 "with --config the tokenizer is data.tokenizer of the config; use --set "
                 "data.tokenizer.kind=...");
      return train::load_run_config(config_, overrides_);
    }
    if (out_.empty())
      throw UserError("--out is missing", "name the folder to make: --out data/mine");
    train::RunConfig config;
    parse_config([&](Section& s) { config.describe(s); }, "", "defaults", overrides_);
    config.data.text = paths_;
    data::TokenizerConfig& tokenizer = config.data.tokenizer;
    if (vocab_size_ > 0) tokenizer.vocab_size = vocab_size_;
    if (tokenizer_ == "bytes" || tokenizer_ == "bpe" || tokenizer_ == "sentencepiece") {
      tokenizer.kind = tokenizer_;
    } else if (!tokenizer_.empty()) {
      tokenizer.kind = data::load_tokenizer(tokenizer_)->kind();
      tokenizer.path = tokenizer_;
    }
    return config;
  }

  void check_overrides() const {
    std::vector<std::string_view> read = {"data.text",
                                          "data.file_list",
                                          "data.text_field",
                                          "data.path",
                                          "data.bad_row",
                                          "data.max_bad_rows",
                                          "data.deduplicate",
                                          "data.tokenizer",
                                          "data.max_document_bytes",
                                          "data.validation_split",
                                          "data.validation_fraction"};
    if (!config_.empty() && out_.empty()) read.emplace_back("run.name");
    check_set_keys(overrides_, read, "`dovetail prepare`");
    check_set_once(overrides_, "data.path", !out_.empty(), "--out");
    for (const char* source : {"data.text", "data.file_list"})
      check_set_once(overrides_, source, !paths_.empty(), "paths");
    check_set_once(overrides_, "data.tokenizer.vocab_size", vocab_size_ > 0, "--vocab-size");
    for (const char* key : {"data.tokenizer.kind", "data.tokenizer.path"})
      check_set_once(overrides_, key, !tokenizer_.empty(), "--tokenizer");
  }

  static nlohmann::ordered_json to_json(const data::PrepareResult& result) {
    auto passed_over = nlohmann::ordered_json::array();
    for (const data::PassedOver& file : result.passed_over)
      passed_over.push_back({{"file", file.relative}, {"reason", file.reason}});
    return {{"folder", result.folder.string()},
            {"documents", result.documents},
            {"train_tokens", result.train_tokens},
            {"validation_tokens", result.validation_tokens},
            {"train_bytes", result.train_bytes},
            {"validation_bytes", result.validation_bytes},
            {"duplicates_skipped", result.duplicates_skipped},
            {"oversized_skipped", result.oversized_skipped},
            {"invalid_skipped", result.invalid_skipped},
            {"empty_skipped", result.empty_skipped},
            {"bad_skipped", result.bad_skipped},
            {"passed_over", passed_over},
            {"sha256", result.sha256},
            {"reused", result.reused}};
  }

  static void print_summary(const data::PrepareResult& r) {
    const auto split = [](int64_t tokens, uint64_t bytes) {
      return fmt::format("{} tokens of {}", format_grouped(tokens),
                         format_bytes(static_cast<double>(bytes)));
    };
    print(format_table(
        {{"folder", r.folder.string() + (r.reused ? "  (already up to date)" : "")},
         {"documents", format_grouped(r.documents)},
         {"train", split(r.train_tokens, r.train_bytes)},
         {"validation", split(r.validation_tokens, r.validation_bytes)},
         {"skipped",
          fmt::format("{} duplicates, {} too large, {} not UTF-8, {} without text, {} bad records",
                      format_grouped(r.duplicates_skipped), format_grouped(r.oversized_skipped),
                      format_grouped(r.invalid_skipped), format_grouped(r.empty_skipped),
                      format_grouped(r.bad_skipped))},
         {"passed over",
          fmt::format("{} files", format_grouped(static_cast<int64_t>(r.passed_over.size())))},
         {"sha256", r.sha256}}));
  }

  std::vector<std::string> paths_, overrides_;
  std::string out_, config_, tokenizer_;
  int64_t vocab_size_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_prepare_command() { return std::make_unique<PrepareCommand>(); }

}  // namespace dovetail::cli
