#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/base/log.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/data/files/utf8.h"
#include "dovetail/models/generate.h"
#include "dovetail/train/load_run.h"

namespace dovetail::cli {
namespace {

/// Returns the length of `text` without an incomplete UTF-8 sequence at its end. A token may hold
/// part of a character.
size_t whole_characters(std::string_view text) {
  size_t begin = text.size();
  while (begin > 0 && text.size() - begin < 4) {
    const auto byte = static_cast<unsigned char>(text[--begin]);
    if ((byte & 0xC0) == 0x80) continue;
    const size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return begin + length > text.size() ? begin : text.size();
  }
  return text.size();
}

class GenerateCommand : public Command {
 public:
  std::string name() const override { return "generate"; }
  std::string summary() const override { return "Continue a text with a trained model"; }
  std::string example() const override {
    return "dovetail generate runs/quickstart --prompt \"def \" --tokens 100";
  }

  void declare(Arguments& arguments) override {
    arguments.positional("run", &run_, "Folder of a run, or of one of its checkpoints")
        .is_required()
        .completes(Completion::kFolder);
    arguments.option("--prompt", "TEXT", &prompt_, "Text to continue; without it, a new document");
    arguments.option("--tokens", "N", &options_.max_tokens, "Maximum number of tokens to add (200)")
        .range(0, 1e9);
    arguments
        .option("--temperature", "T", &options_.temperature,
                "Sampling temperature. Below 1: safer; above 1: wilder; 0: always the most likely "
                "token (0.8)")
        .range(0, 100);
    arguments
        .option("--top-k", "K", &options_.top_k,
                "Choose among the K most likely tokens; 0: all (0)")
        .range(0, 1e9);
    arguments
        .option("--top-p", "P", &options_.top_p,
                "Choose among the most likely tokens with this total probability (1)")
        .range(1e-6, 1);
    arguments.option("--seed", "N", &seed_, "Seed; the same seed gives the same text (0)")
        .range(0, 9e15);
    arguments.option("--precision", "RECIPE", &precision_,
                     "Number formats: float32, bf16, mxfp8, ... or a recipe of the run's config "
                     "(the run's own, with its overrides)");
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void check() override {
    if (options_.temperature > 0) return;
    const models::GenerateOptions none;
    const auto unread = [](bool given, const char* option) {
      user_check(
          !given,
          "{} does nothing with --temperature 0, which takes the most likely token; leave it out",
          option);
    };
    unread(options_.top_k != none.top_k, "--top-k");
    unread(options_.top_p != none.top_p, "--top-p");
    unread(seed_ != 0, "--seed");
  }

  void run() override {
    check();
    const train::LoadedModel loaded = train::load_model(run_, precision_);
    if (!json_) log_info("precision {}", loaded.precision.text());
    const data::Tokenizer& tokenizer = *loaded.tokenizer;
    std::vector<int32_t> prompt = tokenizer.encode(prompt_);
    if (prompt.empty()) {
      if (tokenizer.end_of_document() < 0) {
        throw UserError("this tokenizer has no token that begins a document",
                        "give some text with --prompt");
      }
      prompt.push_back(tokenizer.end_of_document());
    }
    options_.stop_token = tokenizer.end_of_document();
    options_.vocab_size = tokenizer.vocab_size();
    options_.seed = static_cast<uint64_t>(seed_);
    if (!json_) print(prompt_);

    // The prompt is decoded, too, because SentencePiece drops the space at the beginning of a text.
    std::vector<int32_t> tokens = prompt;
    const size_t begin = tokenizer.decode(tokens).size();
    size_t printed = begin;
    std::string text;
    generate(*loaded.model, prompt, options_, [&](int32_t token) {
      if (token == options_.stop_token) return false;
      tokens.push_back(token);
      text = tokenizer.decode(tokens);
      const size_t end = whole_characters(text);
      if (!json_ && end > printed)
        print(data::replace_invalid_utf8(std::string_view(text).substr(printed, end - printed)));
      printed = std::max(printed, end);
      return true;
    });
    if (!json_) {
      print(data::replace_invalid_utf8(text.substr(std::min(printed, text.size()))) + "\n");
      return;
    }
    print_json(
        {{"prompt", prompt_},
         {"continuation", data::replace_invalid_utf8(text.substr(std::min(begin, text.size())))},
         {"tokens", tokens.size() - prompt.size()},
         {"step", loaded.step},
         {"precision", loaded.precision.json()}});
  }

 private:
  std::string run_, prompt_, precision_;
  models::GenerateOptions options_;
  int64_t seed_ = 0;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_generate_command() { return std::make_unique<GenerateCommand>(); }

}  // namespace dovetail::cli
