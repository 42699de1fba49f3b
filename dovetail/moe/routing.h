#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

/// Which experts a token goes to, in which of their slots, with which weight.
namespace dovetail::moe {

/// How a token's experts are chosen: those of the largest p; of the largest share after Sinkhorn's
/// scaling (Clark et al. 2022); by a balanced assignment (BASE, k = 1); in turn, whatever the
/// logits (balanced: for benchmarks). See balance.h.
enum class Selection { kTopK, kSinkhorn, kBase, kBalanced };
/// p = softmax(logits) over the experts, or sigmoid of each (DeepSeek-V3).
enum class Score { kSoftmax, kSigmoid };
/// A token's weights: p over the sum of its k choices' p (before), over those that were not dropped
/// (after), or p.
enum class Normalize { kBefore, kAfter, kNone };
/// In which order choices take slots: all first choices, then all second (GShard, Tutel), or token
/// by token (MegaBlocks).
enum class SlotOrder { kChoice, kToken };
/// What becomes of choices beyond an expert's capacity: those that come last are dropped, or those
/// of the smallest p, or nothing is.
enum class Drop { kPosition, kProbability, kNone };
/// A group's score (DeepSeek-V3: the sum of its two largest; V2: its largest).
enum class GroupScore { kTop2, kMax };
/// Which choices the load-balancing loss counts (GShard and Switch: the first).
enum class LoadCount { kFirstChoice, kAllChoices };

/// How a capacity follows from T tokens, E experts, k and the capacity factor cf.
///   tutel       k int(cf ceil(T / E)); cf = 0: as large as needed; cf < 0: as needed, at most that
///   of -cf switch      int(cf T / E) megatron    ceil(cf T k / E) megablocks  int(cf k T / E)
///   mesh_tf     max(4, int(cf T / E))
enum class CapacityRule { kTutel, kSwitch, kMegatron, kMegablocks, kMeshTf };

struct RoutingSpec {
  int64_t k = 2;
  Selection selection = Selection::kTopK;
  Score score = Score::kSoftmax;
  Normalize normalize = Normalize::kBefore;  ///< with k = 1 the weight is p
  double scale = 1;                          ///< of the weights
  SlotOrder slot_order = SlotOrder::kChoice;
  bool batch_prioritized = false;  ///< tokens of the largest p come first (Riquelme et al. 2021)
  Drop drop = Drop::kPosition;
  CapacityRule capacity_rule = CapacityRule::kTutel;
  double capacity_factor = 1;
  int64_t capacity = 0;  ///< above 0: in place of the rule's
  /// Experts are `groups` equal groups of neighbours; a token's choices lie in its `top_groups`
  /// best.
  int64_t groups = 1, top_groups = 1;
  GroupScore group_score = GroupScore::kTop2;
  LoadCount load_count = LoadCount::kFirstChoice;
  int64_t sequence =
      0;  ///< above 0: load_loss is the mean of those of every so many rows (DeepSeek-V3)
  /// A second choice dropped by a draw gives its slot to the next one (Mesh-TensorFlow); otherwise
  /// it consumes it (FastMoE).
  bool draw_frees_slot = false;
};

struct Routing {
  at::Tensor expert;     ///< (T, k) int32, descending by what they are chosen by
  at::Tensor slot;       ///< (T, k) int32; -1: dropped
  at::Tensor weight;     ///< (T, k); 0: dropped
  at::Tensor count;      ///< (E) int64: choices before any was dropped
  at::Tensor load_loss;  ///< E sum_e f_e P_e, f_e the share of the counted choices, P_e the mean p:
                         ///< 1 when balanced
  at::Tensor mean_score;  ///< (E): P_e over all rows
  at::Tensor z_loss;      ///< mean of logsumexp(logits)^2 (Zoph et al. 2022)
  int64_t capacity = 0;   ///< 0 with Drop::kNone
};

/// What routing may read beside the logits; each may be undefined.
struct RoutingInputs {
  at::Tensor bias;    ///< (E): added to p where experts are chosen, and only there
                      ///< (auxiliary-loss-free balance)
  at::Tensor draw;    ///< (T) uniform in [0, 1): the second of two choices is dropped where 2 w2 <
                      ///< draw (GShard), w2 its weight over both choices
  at::Tensor chosen;  ///< (T, k), integers: the experts, chosen elsewhere
};

/// Routing of logits (T, E): float64 is computed in float64, every other floating dtype in float32,
/// which is the dtype of weights and losses. `weight`, `load_loss` and `z_loss` are differentiable;
/// indices are constants.
///
/// Ties go to the lowest index, of experts, groups and tokens. NaN counts as -infinity where
/// experts are chosen. A sum of p below 1e-20 counts as that. P_e of a sigmoid is the mean of p_e
/// over the token's sum. The result depends on neither threads nor repetition. All tensors on one
/// device; Sinkhorn's scaling and BASE are on the CPU alone. Throws UserError naming the argument.
Routing route(const at::Tensor& logits, const RoutingSpec& spec, const RoutingInputs& inputs = {});

/// E sum_e f_e P_e, which is 1 when the load is even: counts (E) of choices over their sum
/// `choices`, mean_score (E).
at::Tensor load_balance(const at::Tensor& counts, double choices, const at::Tensor& mean_score);
/// Its first factor: how many times an even share each expert has; of dtype and device `options`.
at::Tensor relative_load(const at::Tensor& counts, double choices,
                         const at::TensorOptions& options);

struct ExpertChoice {
  at::Tensor token;   ///< (E, capacity) int32, descending by weight
  at::Tensor weight;  ///< (E, capacity): softmax over the experts
};
/// Each expert takes its `capacity` best tokens (Zhou et al. 2022): every expert has the same load,
/// a token any number of experts.
ExpertChoice choose_tokens(const at::Tensor& logits, int64_t capacity);

/// What `choose_tokens` gives to ceil(T k / E) tokens each, as a Routing of `scale` times its
/// weights: a token has as many choices as the most of any, of which those in slot -1 are none.
/// load_loss is 0. On the CPU or meta.
Routing route_by_experts(const at::Tensor& logits, int64_t k, double scale);

/// Throws UserError naming `op` and the logits unless they are floating, (T, E) with E > 0, on the
/// CPU, meta or CUDA.
void check_logits(const char* op, const at::Tensor& logits);
/// The same for what has no version for CUDA.
void check_logits_on_cpu(const char* op, const at::Tensor& logits);

/// Throws UserError, beginning with `owner`, for what routing to so many experts cannot be.
void check_spec(std::string_view owner, const RoutingSpec& spec, int64_t experts);

/// The slots of each expert by the rule. `largest_count`, the largest of the experts' counts, is
/// read by Tutel's rule with cf <= 0.
int64_t capacity(const RoutingSpec& spec, int64_t tokens, int64_t experts, int64_t largest_count);

/// "top_k", "sinkhorn", "base", "balanced"; "softmax", "sigmoid"; "before", "after", "none";
/// "choice", "token"; "position", "probability", "none"; "top2", "max"; "first_choice",
/// "all_choices"; the rules as above. Throw UserError for another name, listing the valid ones.
Selection parse_selection(std::string_view text);
Score parse_score(std::string_view text);
Normalize parse_normalize(std::string_view text);
SlotOrder parse_slot_order(std::string_view text);
Drop parse_drop(std::string_view text);
GroupScore parse_group_score(std::string_view text);
LoadCount parse_load_count(std::string_view text);
CapacityRule parse_capacity_rule(std::string_view text);

}  // namespace dovetail::moe
