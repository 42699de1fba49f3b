#include "dovetail/models/recommender_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <initializer_list>
#include <numeric>
#include <string_view>

#include "dovetail/base/error.h"

namespace dovetail::models {
namespace {

/// Rejects keys of other models.
void check_readers(const RecommenderConfig& config) {
  const RecommenderConfig none;
  const auto only = [&](const char* key, const char* model, bool given) {
    user_check(!given || config.model == model,
               "recommender.{} is {}'s, but recommender.model = \"{}\"; leave it out", key, model,
               config.model);
  };
  only("bottom", "dlrm", config.bottom != none.bottom);
  only("cross_layers", "dcnv2", config.cross_layers != none.cross_layers);
  only("cross_rank", "dcnv2", config.cross_rank != none.cross_rank);
  only("cross", "dcnv2", config.cross != none.cross);
  only("attention", "din", config.attention != none.attention);
  only("interest", "dien", config.interest != none.interest);
  only("auxiliary", "dien", config.auxiliary != none.auxiliary);
  only("auxiliary_weight", "dien", config.auxiliary_weight != none.auxiliary_weight);
  only("micro", "can", config.micro != none.micro);
  only("orders", "can", config.orders != none.orders);
  only("co_action", "can", config.co_action != none.co_action);
  only("experts", "mmoe", config.experts != none.experts);
  only("expert", "mmoe", config.expert != none.expert);
  only("task_weights", "mmoe", config.task_weights != none.task_weights);
}

bool reads_auxiliary(const RecommenderConfig& config) {
  return config.model != "dien" || config.auxiliary_weight > 0;
}

bool reads_dim(const RecommenderConfig& config, const RecommenderInputs& inputs) {
  return !inputs.sequences.empty() || inputs.dims.empty() ||
         std::ranges::any_of(inputs.dims, [&](int64_t dim) { return dim == config.dim; });
}

/// Rejects keys that have no effect because of other keys of the same model.
void check_effects(const RecommenderConfig& config, const RecommenderInputs& inputs) {
  const RecommenderConfig none;
  user_check(
      reads_auxiliary(config) || config.auxiliary == none.auxiliary,
      "recommender.auxiliary does nothing with recommender.auxiliary_weight = 0; leave it out");
  user_check(reads_dim(config, inputs) || config.dim == none.dim,
             "recommender.dim = {} does nothing: each feature of rows.sparse has its own dim; "
             "leave it out",
             config.dim);
}

void check_tasks(const RecommenderConfig& config, const RecommenderInputs& inputs) {
  user_check(inputs.tasks == 1 || config.model == "mmoe",
             "rows.label names {} tasks, but recommender.model = \"{}\" learns one; use \"mmoe\"",
             inputs.tasks, config.model);
  user_check(config.task_weights.empty() || std::ssize(config.task_weights) == inputs.tasks,
             "recommender.task_weights has {} entries, but rows.label names {} tasks",
             config.task_weights.size(), inputs.tasks);
}

void check_sequences(const RecommenderConfig& config, const RecommenderInputs& inputs) {
  if (!reads_sequences(config)) return;
  const bool targeted =
      std::ranges::any_of(inputs.sequences, [](const auto& s) { return s.target >= 0; });
  user_check(
      config.model == "can" ? !inputs.sequences.empty() : targeted,
      "recommender.model = \"{}\" compares a candidate with a sequence of earlier events, but {}. "
      "Give a [[rows.sparse]] sequence = true and the candidate's feature as its table",
      config.model,
      inputs.sequences.empty() ? "[rows] names no sequence"
                               : "no sequence shares a feature's table");
  user_check(config.model != "dien" || inputs.length > 1,
             "recommender.model = \"dien\" learns from the event that follows, but sequences keep "
             "one; give a larger max_length");
  user_check(config.micro.size() > 1,
             "recommender.micro = [{}] is no MLP; give the width of its input, of hidden layers "
             "and of its output",
             fmt::join(config.micro, ", "));
  user_check(
      config.model != "can" || !inputs.co_actions.empty(),
      "recommender.model = \"can\" has no co-action: no sequence shares a feature's table and "
      "recommender.co_action is empty. Name pairs there, such as \"item * clicked_items\"");
}

}  // namespace

void RecommenderConfig::describe(Section& s) {
  s.value("model", model,
          "Architecture: wide_deep (Cheng et al. 2016), deepfm (Guo et al. 2017), dlrm (Naumov et "
          "al. 2019) or dcnv2 (Wang et al. 2021). For sequences: din (Zhou et al. 2018), dien "
          "(Zhou et al. 2019) or can (Bian et al. 2022). For several labels: mmoe (Ma et al. "
          "2018). Empty: train no recommender")
      .choices({"", "wide_deep", "deepfm", "dlrm", "dcnv2", "din", "dien", "can", "mmoe"});
  s.value("dim", dim, "Elements of an embedding").range(1, 65536);
  s.value("bottom", bottom,
          "dlrm: hidden widths of the tower for dense features. Its last layer has dim elements")
      .range(1, 1e6);
  s.value("deep", deep,
          "Hidden widths of the deep part, of dlrm's top part, or of each task's part in mmoe")
      .range(1, 1e6);
  s.value("cross_layers", cross_layers, "dcnv2: number of cross layers").range(1, 100);
  s.value("cross_rank", cross_rank, "dcnv2: rank of a cross layer's matrix; 0: full rank")
      .range(0, 1e6);
  s.value("grain", grain,
          "Samples that the dense part processes at a time. Its sums have the same bits for each "
          "train.micro_batch that is a multiple of grain")
      .unit("samples")
      .range(1, 1e9);
  s.value("cross", cross,
          "dcnv2: place of the deep part, next to the cross layers (parallel) or on top of them "
          "(stacked)")
      .choices({"parallel", "stacked"});
  s.value("attention", attention, "din: hidden widths of the local activation unit").range(1, 1e6);
  s.value("interest", interest, "dien: elements of the states of its two recurrent layers")
      .range(1, 65536);
  s.value("auxiliary", auxiliary,
          "dien: hidden widths of the network that distinguishes the next event from an event of "
          "another sample")
      .range(1, 1e6);
  s.value("auxiliary_weight", auxiliary_weight, "dien: weight of the auxiliary loss; 0: none")
      .range(0, 1e6);
  s.value("micro", micro, "can: widths of the micro-MLP, from its input to its output")
      .range(1, 4096);
  s.value("orders", orders, "can: the micro-MLP reads its input's powers up to this one")
      .range(1, 8);
  s.value("co_action", co_action,
          "can: pairs \"item * sequence\". The item's id selects the micro-MLP, which reads the "
          "sequence. Empty: each sequence, paired with the feature whose table it shares");
  s.value("experts", experts, "mmoe: number of experts that the tasks share").range(1, 4096);
  s.value("expert", expert, "mmoe: widths of an expert's layers").range(1, 1e6);
  s.value("task_weights", task_weights,
          "mmoe: weights of the tasks' losses, in the order of rows.label; empty: 1 each")
      .range(0, 1e6);
}

bool has_wide_part(const RecommenderConfig& config) {
  return config.model == "wide_deep" || config.model == "deepfm";
}

bool reads_sequences(const RecommenderConfig& config) {
  return config.model == "din" || config.model == "dien" || config.model == "can";
}

bool has_negatives(const RecommenderConfig& config) {
  return config.model == "dien" && config.auxiliary_weight > 0;
}

int64_t micro_parameters(const RecommenderConfig& config) {
  int64_t count = 0;
  for (size_t i = 1; i < config.micro.size(); ++i)
    count += (config.micro[i - 1] + 1) * config.micro[i];
  return count;
}

int64_t embedded_width(const RecommenderConfig& config, const RecommenderInputs& inputs,
                       int64_t features) {
  if (inputs.dims.empty()) return features * config.dim;
  return std::accumulate(inputs.dims.begin(), inputs.dims.begin() + features, int64_t{0});
}

void forget_unread_keys(RecommenderConfig& config, const RecommenderInputs& inputs) {
  const RecommenderConfig none;
  if (!reads_auxiliary(config)) config.auxiliary = none.auxiliary;
  if (!reads_dim(config, inputs)) config.dim = none.dim;
}

void check(const RecommenderConfig& config, const RecommenderInputs& inputs) {
  check_readers(config);
  check_effects(config, inputs);
  check_tasks(config, inputs);
  check_sequences(config, inputs);
  user_check(inputs.sparse > 0,
             "recommender.model = \"{}\" needs a sparse feature, but [rows] names none",
             config.model);
  user_check(config.model != "dlrm" || inputs.dense > 0,
             "recommender.model = \"dlrm\" needs a dense feature, but [rows] names none; use "
             "another model");
}

}  // namespace dovetail::models
