#include "dovetail/train/resolve/unread_keys.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/numerics/quantization.h"

namespace dovetail::train {
namespace {

/// Keys with this beginning are read only by runs of some kinds.
struct KindsOfKey {
  std::string_view prefix;
  std::initializer_list<RunKind> kinds;
};
constexpr std::initializer_list<RunKind> kGpt = {RunKind::kGpt},
                                         kRecommender = {RunKind::kRecommender},
                                         kVision = {RunKind::kVision};
constexpr std::initializer_list<RunKind> kSamples = {RunKind::kRecommender, RunKind::kVision},
                                         kGptOrRecommender = {RunKind::kGpt, RunKind::kRecommender};
constexpr KindsOfKey kKindsOfKeys[] = {{"/model/", kGpt},
                                       {"/data/", kGpt},
                                       {"/precision/recipe", kGptOrRecommender},
                                       {"/precision/recipes", kGpt},
                                       {"/precision/gemm", kGpt},
                                       {"/precision/override", kGpt},
                                       {"/parallel/", kGpt},
                                       {"/run/cuda_graph", kGptOrRecommender},
                                       {"/run/attention", kGpt},
                                       {"/train/checkpoint_activations", kGpt},
                                       {"/train/init_noise", kGpt},
                                       {"/eval/max_tokens", kGpt},
                                       {"/log/quantization_every", kGpt},
                                       {"/log/experts_every", kGpt},
                                       {"/log/sample_", kGpt},
                                       {"/run/start_", kRecommender},
                                       {"/recommender/", kRecommender},
                                       {"/rows/", kRecommender},
                                       {"/embedding/", kRecommender},
                                       {"/log/tables_every", kRecommender},
                                       {"/checkpoint/full_every", kRecommender},
                                       {"/vision/", kVision},
                                       {"/images/", kVision},
                                       {"/eval/max_rows", kSamples}};

bool reads(RunKind kind, std::string_view key) {
  return std::ranges::none_of(kKindsOfKeys, [&](const KindsOfKey& entry) {
    return key.starts_with(entry.prefix) &&
           std::ranges::find(entry.kinds, kind) == entry.kinds.end();
  });
}

void check_unread(bool given, std::string_view key, const std::string& beside) {
  user_check(!given, "{} does nothing with {}; leave it out", key, beside);
}

void check_logs(const RunConfig& config) {
  const LogSection none, &log = config.log;
  const auto given = [](int64_t every, int64_t usual) { return every != usual && every != 0; };
  const bool hashed = std::ranges::any_of(config.rows.sparse, &data::SparseConfig::hashed);
  check_unread(given(log.experts_every, none.experts_every) && config.model.moe.experts == 0,
               "log.experts_every", "model.moe.experts = 0");
  check_unread(given(log.tables_every, none.tables_every) && !hashed, "log.tables_every",
               "num_rows in each feature of rows.sparse, whose tables admit all ids");
  check_unread(
      given(log.quantization_every, none.quantization_every) && !quantizes(config.precision),
      "log.quantization_every",
      fmt::format("precision.recipe = \"{}\", which quantizes nothing", config.precision.recipe));
}

/// Checks the keys of evaluations during training, which limit the number of tokens or rows.
void check_evaluations(const RunConfig& config) {
  const EvalSection none, &eval = config.eval;
  const RunKind kind = config.kind();
  const bool by_day = kind == RunKind::kRecommender && config.rows.by_day();
  const std::string at_the_end = "eval.every_steps = 0: the evaluation at the end reads all";
  check_unread(eval.every_steps == 0 && eval.max_tokens != none.max_tokens, "eval.max_tokens",
               at_the_end);
  check_unread(eval.every_steps == 0 && !by_day && eval.max_rows != none.max_rows, "eval.max_rows",
               at_the_end);
  const bool text = !config.data.text.empty() || !config.data.file_list.empty();
  if (kind == RunKind::kRecommender && !by_day && config.rows.validation_fraction == 0)
    check_nothing_held_out(eval, "rows.validation_fraction = 0");
  if (kind == RunKind::kVision && config.images.validation.empty() &&
      config.images.validation_fraction == 0)
    check_nothing_held_out(eval, "images.validation_fraction = 0");
  if (kind == RunKind::kGpt && text && config.data.validation_fraction == 0)
    check_nothing_held_out(eval, "data.validation_fraction = 0");
}

/// Returns true if embedding.pooling applies to the bags of a feature.
bool pools(const RunConfig& config) {
  return std::ranges::any_of(config.rows.sparse, [&](const data::SparseConfig& feature) {
    return feature.pooling.empty() &&
           !(models::reads_sequences(config.recommender) && feature.sequence);
  });
}

}  // namespace

void check_sections(const RunConfig& given) {
  RunConfig config = given, untouched;
  const auto flat = [](RunConfig& c) {
    return config_to_json([&](Section& s) { c.describe(s); }).flatten();
  };
  const RunKind kind = config.kind();
  check_unread(kind != RunKind::kGpt && config.model.preset != untouched.model.preset,
               "model.preset", config.kind_in_words());
  user_check(config.recommender.model.empty() || config.vision.model.empty(),
             "recommender.model = \"{}\" and vision.model = \"{}\" are both given; leave one out",
             config.recommender.model, config.vision.model);
  const nlohmann::json none = flat(untouched), all = flat(config);
  for (const auto& [pointer, value] : all.items()) {
    if (reads(kind, pointer) || (none.contains(pointer) && none[pointer] == value)) continue;
    std::string dotted = pointer.substr(1);
    std::ranges::replace(dotted, '/', '.');
    throw UserError(fmt::format("{} = {} does nothing: this run trains a {}", dotted, value.dump(),
                                config.kind_in_words()),
                    kind != RunKind::kGpt
                        ? "leave it out"
                        : "leave it out, or say which model to train in place of a GPT "
                          "(recommender.model, vision.model)");
  }
}

void check_effects(const RunConfig& config) {
  const CheckpointSection none, &checkpoint = config.checkpoint;
  check_unread(checkpoint.every_steps == 0 && checkpoint.keep != none.keep, "checkpoint.keep",
               "checkpoint.every_steps = 0: there is no checkpoint");
  check_unread(checkpoint.every_steps == 0 && checkpoint.writers != none.writers,
               "checkpoint.writers", "checkpoint.every_steps = 0: there is no checkpoint");
  check_unread(checkpoint.every_steps <= 0 && checkpoint.full_every != none.full_every,
               "checkpoint.full_every",
               checkpoint.every_steps == 0
                   ? "checkpoint.every_steps = 0: there is no checkpoint"
                   : "checkpoint.every_steps = \"end\": the checkpoint at the end is full");
  check_unread(
      config.run.start_optimizer != RunSection().start_optimizer && config.run.start_from.empty(),
      "run.start_optimizer", "run.start_from = \"\": nothing comes from another run");
  check_logs(config);
  check_evaluations(config);
  user_check(config.kind() != RunKind::kRecommender || pools(config) ||
                 config.embedding.pooling == EmbeddingSection().pooling,
             "embedding.pooling = \"{}\" does nothing: no feature of rows.sparse is pooled by it; "
             "leave it out",
             config.embedding.pooling);
}

void forget_unread_keys(RunConfig& stored) {
  moe::forget_unread_scope(stored.model.moe);
  if (stored.kind() != RunKind::kRecommender) return;
  forget_unread_keys(stored.recommender, recommender_inputs(stored));
  if (!pools(stored)) stored.embedding.pooling = EmbeddingSection().pooling;
}

void check_nothing_held_out(const EvalSection& eval, const std::string& why) {
  const EvalSection none;
  check_unread(eval.every_steps != none.every_steps && eval.every_steps != 0, "eval.every_steps",
               why);
  check_unread(eval.max_tokens != none.max_tokens, "eval.max_tokens", why);
  check_unread(eval.max_rows != none.max_rows, "eval.max_rows", why);
}

std::string keys_of_several_ranks(const RunConfig& config) {
  const RunConfig none;
  std::vector<std::string_view> keys;
  if (config.comm.timeout_s != none.comm.timeout_s) keys.push_back("comm.timeout_s");
  if (config.train.bucket_bytes != none.train.bucket_bytes) keys.push_back("train.bucket_bytes");
  if (config.checkpoint.writers != none.checkpoint.writers) keys.push_back("checkpoint.writers");
  if (config.parallel.shard != none.parallel.shard) keys.push_back("parallel.shard");
  if (config.embedding.sharding != none.embedding.sharding) keys.push_back("embedding.sharding");
  if (!config.embedding.placements.empty()) keys.push_back("embedding.placement.sharding");
  if (config.embedding.exchange != none.embedding.exchange) keys.push_back("embedding.exchange");
  if (config.embedding.transfer != none.embedding.transfer) keys.push_back("embedding.transfer");
  return fmt::format("{}", fmt::join(keys, ", "));
}

std::string unread_ffn_width(const models::ModelConfig& resolved) {
  const bool read = resolved.moe.experts == 0 || resolved.moe.every > 1;
  models::ModelConfig usual = resolved;
  usual.ffn_width = models::model_preset(resolved.preset).config.ffn_width;
  usual.moe = {};
  if (read || resolved.ffn_width == resolved.moe.ffn_width ||
      resolved.ffn_width == models::resolve_model_config(usual, 0).ffn_width)
    return {};
  return fmt::format(
      "model.ffn_width = {}: without effect, for each block has experts, of model.moe.ffn_width = "
      "{}",
      resolved.ffn_width, resolved.moe.ffn_width);
}

}  // namespace dovetail::train
