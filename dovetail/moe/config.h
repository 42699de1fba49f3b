#pragma once

#include <cstdint>
#include <string>

#include "dovetail/base/schema/schema.h"
#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// Config section [model.moe]: mixture-of-experts blocks. The router sends each token to k experts.
struct Config {
  int64_t experts = 0;  ///< 0: dense model without experts
  std::string router = "top_k";
  int64_t k = 2;
  int64_t ffn_width = 0;  ///< hidden elements of an expert; 0: model.ffn_width
  int64_t shared_experts = 0;
  /// Interval of blocks with experts. The last block of each interval has experts, others are
  /// dense.
  int64_t every = 1;
  std::string score = "softmax", normalize = "before", slot_order = "choice", drop = "none",
              group_score = "top2";
  std::string capacity_rule = "tutel", load_count = "all_choices";
  double capacity_factor = 1, scale = 1;
  double eval_capacity_factor = 0;  ///< capacity factor for validation losses; 0: no capacity
  bool batch_prioritized = false, pad_to_capacity = false;
  std::string second_expert = "always";
  bool draw_frees_slot = false;
  double bias_update_rate = 0;
  int64_t num_groups = 1, top_groups = 1;
  std::string load_scope = "auto";
  /// Coefficients of the losses. A negative load_loss means 0.01 for top_k and noisy_top_k, whose
  /// balance is learned, and 0 for the other routers.
  double load_loss = -1, z_loss = 0, importance_loss = 0, smooth_load_loss = 0;
  void describe(Section& s);
  bool operator==(const Config&) const = default;
};

/// Returns true if block `index` has experts instead of a dense feed-forward.
bool has_experts(const Config& config, int64_t index);

/// Returns the number of (experts, width) weight matrices of a router: 0 for hash, 2 for
/// noisy_top_k, else 1.
int64_t router_matrices(const Config& config);

/// Checks the config and fills in values that depend on others. The default ffn_width = 0 becomes
/// `width`, the width of the model's feed-forward. A negative load_loss becomes its default.
/// load_scope = "auto" becomes "global_batch" with a load loss. Also throws UserError for keys that
/// would have no effect. Errors name model.moe.<key>.
Config resolve(const Config& config, int64_t width);

/// Migrates a stored config of version 0.1, which always wrote the default load_scope =
/// "micro_batch". It becomes "auto" if no load loss reads it.
void forget_unread_scope(Config& config);

/// Returns the setting through which a token's experts depend on later tokens when a loss is
/// measured, e.g. "router = \"expert_choice\"". Returns "" if they depend on none.
std::string reads_later_tokens(const Config& config);
/// Throws UserError if the router does not allow decoding token by token.
void check_decodes(const Config& config);

/// Returns the routing options of a training step.
RoutingSpec routing_spec(const Config& config);

}  // namespace dovetail::moe
