#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

/// Routing: chooses the experts of each token, their slots and their weights.
namespace dovetail::moe {

/// Method that chooses a token's experts. See balance.h.
///   kTopK      the largest scores p
///   kSinkhorn  the largest values after Sinkhorn scaling (Clark et al. 2022)
///   kBase      a balanced assignment (BASE); requires k = 1
///   kBalanced  experts in turn, whatever the logits (for benchmarks)
enum class Selection { kTopK, kSinkhorn, kBase, kBalanced };
/// Score p: softmax of the logits over the experts, or sigmoid of each logit (DeepSeek-V3).
enum class Score { kSoftmax, kSigmoid };
/// Normalization of a token's weights. kBefore: p divided by the sum of p over all k choices.
/// kAfter: p divided by the sum over choices that were not dropped. kNone: p.
enum class Normalize { kBefore, kAfter, kNone };
/// Order in which choices take slots. kChoice: all first choices, then all second choices
/// (GShard, Tutel). kToken: token by token (MegaBlocks).
enum class SlotOrder { kChoice, kToken };
/// Choices to drop beyond an expert's capacity. kPosition: the last ones in slot order.
/// kProbability: the ones with the smallest p. kNone: none of them.
enum class Drop { kPosition, kProbability, kNone };
/// Score of a group of experts: the sum of its two largest p (DeepSeek-V3), or its largest p (V2).
enum class GroupScore { kTop2, kMax };
/// Choices that the load-balancing loss counts (GShard and Switch: the first choice).
enum class LoadCount { kFirstChoice, kAllChoices };

/// Rule that computes the capacity from T tokens, E experts, k and the capacity factor cf.
///   tutel       k int(cf ceil(T / E)); cf = 0: as needed; cf < 0: as needed, at most the value for
///               -cf
///   switch      int(cf T / E)
///   megatron    ceil(cf T k / E)
///   megablocks  int(cf k T / E)
///   mesh_tf     max(4, int(cf T / E))
enum class CapacityRule { kTutel, kSwitch, kMegatron, kMegablocks, kMeshTf };

struct RoutingSpec {
  int64_t k = 2;
  Selection selection = Selection::kTopK;
  Score score = Score::kSoftmax;
  Normalize normalize = Normalize::kBefore;  ///< with k = 1 the weight is p
  double scale = 1;                          ///< factor of the weights
  SlotOrder slot_order = SlotOrder::kChoice;
  bool batch_prioritized = false;  ///< tokens of the largest p come first (Riquelme et al. 2021)
  Drop drop = Drop::kPosition;
  CapacityRule capacity_rule = CapacityRule::kTutel;
  double capacity_factor = 1;
  int64_t capacity = 0;  ///< positive: overrides the rule's capacity
  /// Experts form `groups` equal groups of neighbours. A token's choices come from its `top_groups`
  /// best groups.
  int64_t groups = 1, top_groups = 1;
  GroupScore group_score = GroupScore::kTop2;
  LoadCount load_count = LoadCount::kFirstChoice;
  /// Rows of a sequence. Positive: load_loss is the mean of the losses of all sequences
  /// (DeepSeek-V3). 0: load_loss is computed over all rows together.
  int64_t sequence = 0;
  /// If true, a second choice that a random draw drops leaves its slot to the next choice
  /// (Mesh-TensorFlow). Otherwise it uses the slot up (FastMoE).
  bool draw_frees_slot = false;
};

struct Routing {
  at::Tensor expert;  ///< (T, k) int32, in descending order of the selection score
  at::Tensor slot;    ///< (T, k) int32; -1: dropped
  at::Tensor weight;  ///< (T, k); 0: dropped
  at::Tensor count;   ///< (E) int64: choices of each expert before dropping
  /// E sum_e f_e P_e, which is 1 for an even load. f_e: share of expert e in the counted choices.
  /// P_e: mean p of expert e.
  at::Tensor load_loss;
  at::Tensor mean_score;  ///< (E): P_e over all rows
  at::Tensor z_loss;      ///< mean of logsumexp(logits)^2 (Zoph et al. 2022)
  int64_t capacity = 0;   ///< 0 with Drop::kNone
};

/// Optional inputs of routing in addition to the logits. Each may be undefined.
struct RoutingInputs {
  /// (E): added to p only for the choice of experts, not for weights (auxiliary-loss-free balance).
  at::Tensor bias;
  /// (T) uniform in [0, 1). The second of two choices is dropped if 2 w2 < draw (GShard). w2 is its
  /// weight normalized over both choices.
  at::Tensor draw;
  at::Tensor chosen;  ///< (T, k), integers: experts that were chosen elsewhere
};

/// Routes tokens by logits (T, E). float64 is computed in float64, every other floating dtype in
/// float32. Weights and losses have that dtype. `weight`, `load_loss` and `z_loss` are
/// differentiable; indices are constants.
///
/// Ties go to the lowest index of experts, groups and tokens. NaN counts as -infinity in the choice
/// of experts. Sums of p below 1e-20 are replaced by 1e-20. With sigmoid scores P_e is the mean of
/// p_e divided by the token's sum of p. Results depend neither on the number of threads nor on the
/// run. All tensors are on one device; Sinkhorn scaling and BASE run on the CPU only. Throws
/// UserError naming the argument.
Routing route(const at::Tensor& logits, const RoutingSpec& spec, const RoutingInputs& inputs = {});

/// Computes E sum_e f_e P_e, which is 1 for an even load. f_e = counts / choices. counts: (E);
/// `choices`: their sum; mean_score: (E), P_e.
at::Tensor load_balance(const at::Tensor& counts, double choices, const at::Tensor& mean_score);
/// Returns E f_e, the load of each expert relative to an even share, in the dtype and on the device
/// of `options`.
at::Tensor relative_load(const at::Tensor& counts, double choices,
                         const at::TensorOptions& options);

struct ExpertChoice {
  at::Tensor token;   ///< (E, capacity) int32, descending by weight
  at::Tensor weight;  ///< (E, capacity): softmax over the experts
};
/// Chooses the `capacity` best tokens of each expert (Zhou et al. 2022). Every expert has the same
/// load; a token has any number of experts.
ExpertChoice choose_tokens(const at::Tensor& logits, int64_t capacity);

/// Converts the result of `choose_tokens` with capacity ceil(T k / E) to a Routing. Its weights are
/// multiplied by `scale`. k of the Routing is the maximum number of experts that chose one token.
/// Unused entries have slot -1. load_loss is 0. Runs on the CPU or meta.
Routing route_by_experts(const at::Tensor& logits, int64_t k, double scale);

/// Throws UserError naming `op` and the logits unless they are floating, (T, E) with E > 0, and on
/// the CPU, meta or CUDA.
void check_logits(const char* op, const at::Tensor& logits);
/// Same check for operations without a CUDA version.
void check_logits_on_cpu(const char* op, const at::Tensor& logits);

/// Throws UserError, with `owner` as its first word, if `spec` is invalid for this number of
/// experts.
void check_spec(std::string_view owner, const RoutingSpec& spec, int64_t experts);

/// Computes the slots of each expert by the rule. `largest_count` is the maximum of the experts'
/// counts. Only Tutel's rule with cf <= 0 reads it.
int64_t capacity(const RoutingSpec& spec, int64_t tokens, int64_t experts, int64_t largest_count);

/// Parse the name of an enumerator. Throw UserError for another name, listing the valid ones.
///   parse_selection      "top_k", "sinkhorn", "base", "balanced"
///   parse_score          "softmax", "sigmoid"
///   parse_normalize      "before", "after", "none"
///   parse_slot_order     "choice", "token"
///   parse_drop           "position", "probability", "none"
///   parse_group_score    "top2", "max"
///   parse_load_count     "first_choice", "all_choices"
///   parse_capacity_rule  "tutel", "switch", "megatron", "megablocks", "mesh_tf"
Selection parse_selection(std::string_view text);
Score parse_score(std::string_view text);
Normalize parse_normalize(std::string_view text);
SlotOrder parse_slot_order(std::string_view text);
Drop parse_drop(std::string_view text);
GroupScore parse_group_score(std::string_view text);
LoadCount parse_load_count(std::string_view text);
CapacityRule parse_capacity_rule(std::string_view text);

}  // namespace dovetail::moe
