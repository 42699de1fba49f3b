#include "dovetail/train/gpt/load_model.h"

#include <fmt/ranges.h>
#include <torch/nn/module.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/ranks/router_bias.h"
#include "dovetail/train/run/stored_run.h"
#include "dovetail/train/run/tokenizer_state.h"

namespace dovetail::train {
namespace {

constexpr std::string_view kModelPrefix = "model.";

void load_parameters(models::GPT& model, const io::Snapshot& snapshot,
                     const std::filesystem::path& checkpoint) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    const auto found = snapshot.tensors.find(std::string(kModelPrefix) + item.key());
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

}  // namespace

LoadedModel load_model(const StoredRun& stored) {
  if (stored.config.recommends())
    throw UserError(fmt::format("{} belongs to a recommender ({}), not to a GPT",
                                stored.checkpoint.string(), stored.config.recommender.model),
                    "`dovetail eval` measures it, `dovetail export` writes it for PyTorch");
  LoadedModel loaded{.model = nullptr,
                     .tokenizer = tokenizer_from_state(stored.snapshot.state["tokenizer"]),
                     .config = stored.config,
                     .step = stored.snapshot.step,
                     .checkpoint = stored.checkpoint};
  loaded.config.model =
      models::resolve_model_config(loaded.config.model, loaded.tokenizer->vocab_size());
  loaded.model = std::make_shared<models::GPT>(loaded.config.model);
  if (loaded.config.precision.recipe == "fp64") loaded.model->set_compute_dtype(at::kDouble);
  load_parameters(*loaded.model, stored.snapshot, loaded.checkpoint);
  loaded.model->eval();
  return loaded;
}

io::Snapshot initial_snapshot(models::GPT& model, const data::Tokenizer& tokenizer,
                              const RunConfig& config) {
  io::Snapshot snapshot;
  for (const auto& item : model.named_parameters()) {
    snapshot.tensors[std::string(kModelPrefix) + item.key()] = item.value().detach().to(at::kFloat);
  }
  RunConfig stored = config;
  snapshot.state["config"] = config_to_json([&](Section& s) { stored.describe(s); });
  snapshot.state["tokenizer"] = tokenizer_state(tokenizer);
  return snapshot;
}

}  // namespace dovetail::train
