#include "dovetail/train/gpt/load_model.h"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/comm/gloo_group.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/ranks/batch_shares.h"
#include "dovetail/train/ranks/router_bias.h"
#include "dovetail/train/run/stored_run.h"
#include "dovetail/train/run/tokenizer_state.h"

namespace dovetail::train {
namespace {

void load_parameters(models::GPT& model, const io::Snapshot& snapshot,
                     const std::filesystem::path& checkpoint) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    const auto found = snapshot.tensors.find(kModelPrefix + item.key());
    user_check(found != snapshot.tensors.end(),
               "{}: tensor {}{} is missing, which the stored config asks for", checkpoint.string(),
               kModelPrefix, item.key());
    user_check(found->second.sizes() == item.value().sizes(),
               "{}: tensor {} has shape {}, the stored config asks for {}", checkpoint.string(),
               found->first, fmt::join(found->second.sizes(), "x"),
               fmt::join(item.value().sizes(), "x"));
    item.value().copy_(found->second);
  }
  RouterBias(model).load(snapshot.tensors);
}

/// Name of the precision in which the run trained. Imported weights, which no run has trained yet,
/// are float32 unless their config says more.
std::string trained_precision(const StoredRun& stored) {
  const std::string& recipe = stored.config.precision.recipe;
  return stored_choice(stored.snapshot.state, "precision")
      .value_or(recipe == "auto" ? "fp32" : recipe);
}

/// Gives delayed scaling the magnitudes that the checkpoint holds.
void load_histories(Quantization& quantization, const StoredRun& stored, const std::string& name) {
  std::map<std::string, at::Tensor> histories;
  for (const auto& [tensor, history] : quantization.tensors()) {
    const auto found = stored.snapshot.tensors.find(tensor);
    if (found == stored.snapshot.tensors.end() || found->second.sizes() != history.sizes())
      throw UserError(
          fmt::format("{} scales by the largest magnitudes of earlier steps (delayed scaling), but "
                      "{} holds no {} of {} steps",
                      name, stored.checkpoint.string(), tensor, history.size(0)),
          "use a recipe whose scales follow from the tensors themselves, such as fp8_tensor");
    histories[tensor] = found->second;
  }
  quantization.load(histories, *comm::make_group_of_one());
}

void set_used_precision(LoadedModel& loaded, const StoredRun& stored, const std::string& asked) {
  const UsedPrecision used =
      choose_used_precision(loaded.config.precision, trained_precision(stored), asked);
  try {
    Quantization quantization = set_precision(*loaded.model, used.config, used.name);
    load_histories(quantization, stored, used.name);
  } catch (const UserError& error) {
    throw UserError(
        fmt::format("{} in {}: {}", stored.checkpoint.string(), used.name, error.what()),
        fmt::format("choose another --precision (bf16: nothing is quantized); {}", error.help()));
  }
  loaded.precision = summarize_precision(*loaded.model, used);
}

int64_t micro_batch_of(const StoredRun& stored) {
  const int64_t samples = BatchShares(stored.config, stored.snapshot.state.value("ranks", 1))
                              .maximum_possible_samples();
  const int64_t asked = stored.config.train.micro_batch;
  return asked > 0 ? std::min(asked, samples) : samples;
}

}  // namespace

LoadedModel load_model(const StoredRun& stored, const std::string& precision) {
  if (stored.config.kind() != RunKind::kGpt)
    throw UserError(fmt::format("{} belongs to a {}, not to a GPT", stored.checkpoint.string(),
                                stored.config.kind_in_words()),
                    "`dovetail eval` measures it, `dovetail export` writes it for PyTorch");
  LoadedModel loaded{.model = nullptr,
                     .tokenizer = tokenizer_from_state(stored.snapshot.state["tokenizer"]),
                     .config = stored.config,
                     .step = stored.snapshot.step,
                     .checkpoint = stored.checkpoint};
  loaded.config.model =
      models::resolve_model_config(loaded.config.model, loaded.tokenizer->vocab_size());
  loaded.model = std::make_shared<models::GPT>(loaded.config.model);
  set_used_precision(loaded, stored, precision);
  load_parameters(*loaded.model, stored.snapshot, loaded.checkpoint);
  loaded.micro_batch = micro_batch_of(stored);
  loaded.model->eval();
  return loaded;
}

io::Snapshot initial_snapshot(models::GPT& model, const data::Tokenizer& tokenizer,
                              const RunConfig& config) {
  io::Snapshot snapshot;
  for (const auto& item : model.named_parameters()) {
    snapshot.tensors[kModelPrefix + item.key()] = item.value().detach().to(at::kFloat);
  }
  RunConfig stored = config;
  snapshot.state["config"] = config_to_json([&](Section& s) { stored.describe(s); });
  snapshot.state["tokenizer"] = tokenizer_state(tokenizer);
  return snapshot;
}

}  // namespace dovetail::train
