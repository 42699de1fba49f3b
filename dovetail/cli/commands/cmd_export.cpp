#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/models/huggingface.h"
#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/load_run.h"
#include "dovetail/train/recommender/trained_recommender.h"
#include "dovetail/train/run/stored_run.h"
#include "dovetail/train/vision/trained_vision.h"

namespace dovetail::cli {
namespace {

class ExportCommand : public Command {
 public:
  std::string name() const override { return "export"; }
  std::string summary() const override {
    return "Write a GPT as a Hugging Face folder for `transformers`, another model for PyTorch";
  }
  std::string example() const override { return "dovetail export runs/quickstart --out exported"; }

  void declare(Arguments& arguments) override {
    arguments.positional("run", &run_, "Folder of a run, or of one of its checkpoints")
        .is_required()
        .completes(Completion::kFolder);
    arguments.option("--out", "FOLDER", &out_, "Folder to write")
        .is_required()
        .completes(Completion::kFolder);
    arguments.option("--precision", "RECIPE", &precision_,
                     "Number formats of a GPT's weights: float32, bf16, or the codes of mxfp8, "
                     "mxfp4, ..., which torchao reads (float32)");
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    train::StoredRun stored = train::read_stored_run(run_);
    const int64_t step = stored.snapshot.step;
    const std::string name = stored.config.run.name;
    nlohmann::ordered_json result = {{"folder", out_}, {"step", step}};
    std::string words = fmt::format("step {} of {}", step, name);
    const train::RunKind kind = stored.config.kind();
    user_check(kind == train::RunKind::kGpt || precision_.empty(),
               "--precision does nothing here: {} holds a {}; leave it out", run_,
               stored.config.kind_in_words());
    if (kind == train::RunKind::kRecommender) {
      train::export_recommender(train::TrainedRecommender(std::move(stored)), out_);
    } else if (kind == train::RunKind::kVision) {
      train::export_vision(train::load_vision(stored), stored.config, out_);
    } else {
      const train::LoadedModel loaded =
          train::load_model(stored, precision_.empty() ? "float32" : precision_);
      result["precision"] = loaded.precision.json();
      words += ", " + loaded.precision.text();
      models::export_huggingface(*loaded.model, loaded.tokenizer->kind(),
                                 loaded.tokenizer->serialized(), out_);
    }
    if (json_) {
      print_json(result);
    } else {
      print(fmt::format("{}  ({})\n", out_, words));
    }
  }

 private:
  std::string run_, out_, precision_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_export_command() { return std::make_unique<ExportCommand>(); }

}  // namespace dovetail::cli
