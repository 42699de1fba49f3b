#include <filesystem>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/parse/set_keys.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/huggingface.h"
#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/resolve/load_config.h"

namespace dovetail::cli {
namespace {

namespace fs = std::filesystem;

class ImportCommand : public Command {
 public:
  std::string name() const override { return "import"; }
  std::string summary() const override {
    return "Begin a run from a Hugging Face model: evaluate it, or train it further";
  }
  std::string example() const override {
    return "dovetail import downloads/SmolLM-135M --out runs/smol";
  }

  void declare(Arguments& arguments) override {
    arguments
        .positional("folder", &folder_,
                    "Folder with config.json and model.safetensors (Llama, Mixtral or GPT-2)")
        .is_required()
        .completes(Completion::kFolder);
    arguments.option("--out", "RUN", &out_, "Run folder to make")
        .is_required()
        .completes(Completion::kFolder);
    arguments.option("--set", "KEY=VALUE", &overrides_,
                     "A key of the run's config, such as data.text=[\"notes/\"]; repeatable");
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    const fs::path out = out_;
    if (fs::exists(out) && !fs::is_empty(out)) {
      throw UserError(fmt::format("{} exists and is not empty", out_),
                      "name a new folder with --out");
    }
    const auto [tokenizer, tokenizer_file] = find_tokenizer();
    const auto model = models::import_huggingface(folder_);
    if (tokenizer->vocab_size() > model->config().vocab_size)
      throw UserError(
          fmt::format("{} has {} tokens, but the model's embedding has {} rows",
                      tokenizer_file.string(), tokenizer->vocab_size(), model->config().vocab_size),
          fmt::format("take the model's own tokenizer, or give new tokens rows with transformers: "
                      "model.resize_token_embeddings({}), model.save_pretrained(...)",
                      tokenizer->vocab_size()));
    for (const char* key : {"run.name", "run.folder"})
      check_set_once(overrides_, key, true, "--out");
    for (const char* key : {"model", "data.tokenizer", "train.init_noise", "recommender"})
      check_set_once(overrides_, key, true, "the imported model, which decides it,");
    train::RunConfig config;
    parse_config([&](Section& s) { config.describe(s); }, "", "defaults", overrides_);
    config.run.name = (fs::absolute(out) / "").parent_path().filename().string();
    config.run.folder = out_;
    config.model = model->config();
    config.data.tokenizer.kind = tokenizer->kind();
    config.data.tokenizer.path = (out / tokenizer_file.filename()).string();

    train::check_run_config(config);

    fs::create_directories(out / "checkpoints");
    write_file_atomically(config.data.tokenizer.path, read_file(tokenizer_file));
    write_file_atomically(out / "config.toml",
                          config_to_toml([&](Section& s) { config.describe(s); }));
    io::CheckpointFolder checkpoints(out / "checkpoints", {});
    checkpoints.save(train::initial_snapshot(*model, *tokenizer, config));
    checkpoints.wait();
    if (json_) {
      print_json({{"run", out_}, {"step", 0}});
    } else {
      print(fmt::format("{}\nnext: dovetail train {}/config.toml --set data.text=[\"...\"]\n", out_,
                        out_));
    }
  }

 private:
  std::pair<std::unique_ptr<data::Tokenizer>, fs::path> find_tokenizer() const {
    for (const char* name : {"tokenizer.json", "tokenizer.model"}) {
      const fs::path path = fs::path(folder_) / name;
      if (!fs::exists(path)) continue;
      const fs::path added = fs::path(folder_) / "added_tokens.json";
      if (path.extension() == ".model" && fs::exists(added))
        log_warning("{} is not read: its tokens are not in {}; a tokenizer.json has both",
                    added.string(), name);
      return {data::load_tokenizer(path), path};
    }
    if (!fs::is_directory(folder_))
      throw UserError(fmt::format("{} is not a folder", folder_),
                      "give a Hugging Face model's folder");
    throw UserError(fmt::format("{} holds neither tokenizer.json nor tokenizer.model", folder_),
                    "save the tokenizer beside the model: "
                    "AutoTokenizer.from_pretrained(...).save_pretrained(folder)");
  }

  std::string folder_, out_;
  std::vector<std::string> overrides_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_import_command() { return std::make_unique<ImportCommand>(); }

}  // namespace dovetail::cli
