#pragma once

#include <cstdint>
#include <string>

#include "dovetail/base/schema/schema.h"
#include "dovetail/moe/routing.h"

namespace dovetail::moe {

/// Config section [model.moe]: mixture-of-experts blocks. The router sends each token to k experts.
struct Config {
  int64_t experts = 0;  ///< experts of a block; 0: dense model without experts
  /// Method that chooses experts, a name in kRouterNames (moe/names.h). router.h describes each.
  std::string router = "top_k";
  int64_t k = 2;               ///< experts that process each token
  int64_t ffn_width = 0;       ///< hidden elements of an expert; 0: model.ffn_width
  int64_t shared_experts = 0;  ///< additional experts that process every token
  /// The last of each `every` consecutive blocks has experts. The other blocks are dense.
  int64_t every = 1;
  // Options that set the members of the same name in RoutingSpec (moe/routing.h).
  std::string score = "softmax", normalize = "before", slot_order = "choice", drop = "none",
              group_score = "top2";
  std::string capacity_rule = "tutel", load_count = "all_choices";
  double capacity_factor = 1, scale = 1;
  double eval_capacity_factor = 0;  ///< capacity factor for validation losses; 0: no capacity
  /// `batch_prioritized` is RoutingSpec::batch_prioritized. `pad_to_capacity`: pad each expert's
  /// rows with zeros to its capacity.
  bool batch_prioritized = false, pad_to_capacity = false;
  /// Use of the second of a token's two experts in training. "always": it is used. "random": it is
  /// dropped if a random draw exceeds twice its weight (RoutingInputs::draw).
  std::string second_expert = "always";
  bool draw_frees_slot = false;  ///< RoutingSpec::draw_frees_slot
  double bias_update_rate = 0;   ///< change of each expert's selection bias after a step
  /// Members `groups` and `top_groups` of RoutingSpec.
  int64_t num_groups = 1, top_groups = 1;
  /// Tokens over which the load-balancing loss counts the load: a value of kLoadScopeNames.
  std::string load_scope = "auto";
  /// Coefficients of the losses. A negative load_loss means 0.01 for top_k and noisy_top_k, and 0
  /// for the other routers. Only top_k and noisy_top_k learn to balance the load.
  double load_loss = -1, z_loss = 0, importance_loss = 0, smooth_load_loss = 0;
  void describe(Section& s);
  bool operator==(const Config&) const = default;
};

/// Returns true if block `index` of the model has experts instead of a dense feed-forward.
bool has_experts(const Config& config, int64_t index);

/// Returns the number of (experts, width) weight matrices of a router: 0 for hash, 2 for
/// noisy_top_k, else 1.
int64_t router_matrices(const Config& config);

/// Returns the config with values filled in that depend on others. The default ffn_width = 0
/// becomes `width`, the width of the model's feed-forward. A negative load_loss becomes 0.01 or 0.
/// load_scope = "auto" becomes "global_batch" if load_loss is positive. Throws UserError for
/// invalid values and for keys that would have no effect. Errors name model.moe.<key>.
Config resolve(const Config& config, int64_t width);

/// Migrates a stored config of version 0.1, which always wrote its default load_scope =
/// "micro_batch". The value becomes "auto" if the config has no load loss. Only the load loss reads
/// the value.
void forget_unread_scope(Config& config);

/// Returns the setting that makes a token's experts depend on later tokens when a validation loss
/// is computed. Example: "router = \"expert_choice\"". Returns "" if the experts depend on no later
/// token.
std::string reads_later_tokens(const Config& config);
/// Throws UserError if the router needs later tokens, so that text cannot be decoded token by
/// token.
void check_decodes(const Config& config);

/// Converts a resolved config to the routing options of a training step.
RoutingSpec routing_spec(const Config& config);

}  // namespace dovetail::moe
