#pragma once

#include <cstdint>
#include <string>

#include "dovetail/base/schema/schema.h"
#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// [model.moe]: feed-forwards of which each token takes a few.
struct Config {
  int64_t experts = 0;  ///< 0: a dense model
  std::string router = "top_k";
  int64_t k = 2;
  int64_t ffn_width = 0;  ///< of an expert; 0: model.ffn_width
  int64_t shared_experts = 0;
  int64_t every = 1;  ///< the last of every so many blocks has experts
  std::string score = "softmax", normalize = "before", slot_order = "choice", drop = "none",
              group_score = "top2";
  std::string capacity_rule = "tutel", load_count = "all_choices";
  double capacity_factor = 1, scale = 1;
  double eval_capacity_factor = 0;  ///< for validation losses; 0: no capacity
  bool batch_prioritized = false, pad_to_capacity = false;
  std::string second_expert = "always";
  bool draw_frees_slot = false;
  double bias_update_rate = 0;
  int64_t num_groups = 1, top_groups = 1;
  std::string load_scope = "auto";
  /// Coefficients; load_loss below 0: 0.01 where the router learns balance, else none.
  double load_loss = -1, z_loss = 0, importance_loss = 0, smooth_load_loss = 0;
  void describe(Section& s);
  bool operator==(const Config&) const = default;
};

/// Whether block `index` has experts.
bool has_experts(const Config& config, int64_t index);

/// Matrices (experts, width) of a router.
int64_t router_matrices(const Config& config);

/// Throws UserError naming model.moe.<key>, also for keys that would have no effect. `width` is the
/// width of the model's feed-forward: 0 stands for it. load_scope "auto" becomes "global_batch"
/// where there is a load loss.
Config resolve(const Config& config, int64_t width);

/// Version 0.1 wrote load_scope = "micro_batch", its default, also where no load loss reads it: it
/// becomes "auto" there. For stored configs.
void forget_unread_scope(Config& config);

/// The key by which a token's experts depend on later tokens when a loss is measured, "router =
/// \"expert_choice\""; empty: on none.
std::string reads_later_tokens(const Config& config);
/// Throws UserError if tokens cannot be decoded one by one.
void check_decodes(const Config& config);

/// Routing of a training step.
RoutingSpec routing_spec(const Config& config);

}  // namespace dovetail::moe
