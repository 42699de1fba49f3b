#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

/// Routing: chooses k of E experts for each of T tokens.
///
/// - Choice: one of the k experts of a token. Choice 0 is the first choice.
/// - Score p: softmax or sigmoid of the logit that the router gives a token for an expert.
/// - Slot: number of a choice among the choices of its expert, from 0.
/// - Capacity: maximum number of slots of an expert. Choices beyond it are dropped: the expert does
///   not process the token.
/// - Weight of a choice: factor of the expert's result in the token's result.
/// - Load of an expert: number of its choices, before dropping.
namespace dovetail::moe {

/// Method that chooses a token's experts. balanced_assignment.h describes the last three.
///   kTopK      the largest scores p
///   kSinkhorn  the largest values after Sinkhorn scaling of the logits (Clark et al. 2022)
///   kBase      an assignment that gives experts equal loads (BASE layers); requires k = 1
///   kBalanced  experts in turn, whatever the logits (for benchmarks)
enum class Selection { kTopK, kSinkhorn, kBase, kBalanced };
/// Score p: softmax of the logits over the experts, or sigmoid of each logit (DeepSeek-V3).
enum class Score { kSoftmax, kSigmoid };
/// Normalization of a token's weights. kBefore: p divided by the sum of p over all k choices.
/// kAfter: p divided by the sum over choices that were not dropped. kNone: the weight is p.
enum class Normalize { kBefore, kAfter, kNone };
/// Order in which choices take slots. kChoice: all first choices, then all second choices (GShard,
/// Tutel). kToken: token by token (MegaBlocks).
enum class SlotOrder { kChoice, kToken };
/// Choices to drop if an expert has more choices than its capacity. kPosition: the last ones in
/// slot order. kProbability: the ones with the smallest p. kNone: there is no capacity.
enum class Drop { kPosition, kProbability, kNone };
/// Score of a group of experts: the sum of its two largest p (DeepSeek-V3), or its largest p (V2).
enum class GroupScore { kTop2, kMax };
/// Choices that the load-balancing loss counts (GShard and Switch: the first choice).
enum class LoadCount { kFirstChoice, kAllChoices };

/// Rule that computes the capacity from T tokens, E experts, k and the capacity factor cf. Each is
/// named after the system that uses it.
///   tutel       k int(cf ceil(T / E)). If cf = 0, the largest load of an expert. If cf < 0, the
///               largest load too, but at most the value for -cf
///   switch      int(cf T / E)
///   megatron    ceil(cf T k / E)
///   megablocks  int(cf k T / E)
///   mesh_tf     max(4, int(cf T / E))
enum class CapacityRule { kTutel, kSwitch, kMegatron, kMegablocks, kMeshTf };

/// Options of routing.
struct RoutingSpec {
  int64_t k = 2;  ///< number of experts of each token
  Selection selection = Selection::kTopK;
  Score score = Score::kSoftmax;
  Normalize normalize = Normalize::kBefore;  ///< ignored if k = 1: the weight is then p
  double scale = 1;                          ///< factor that multiplies all weights
  SlotOrder slot_order = SlotOrder::kChoice;
  /// True: tokens take slots in descending order of their largest p (Riquelme et al. 2021). False:
  /// in the order of their index.
  bool batch_prioritized = false;
  Drop drop = Drop::kPosition;
  CapacityRule capacity_rule = CapacityRule::kTutel;
  double capacity_factor = 1;
  int64_t capacity = 0;  ///< positive: capacity to use instead of the rule's
  /// Experts form `groups` equal groups of neighbours. A token's choices come from the `top_groups`
  /// groups with the largest group_score.
  int64_t groups = 1, top_groups = 1;
  GroupScore group_score = GroupScore::kTop2;
  LoadCount load_count = LoadCount::kFirstChoice;
  /// Number of tokens of a sequence. Positive: load_loss is computed for each sequence, and the
  /// result is the mean (DeepSeek-V3). 0: load_loss is computed over all tokens together.
  int64_t sequence = 0;
  /// True: a second choice that a random draw drops (RoutingInputs::draw) leaves its slot to the
  /// next choice (Mesh-TensorFlow). False: it uses the slot up (FastMoE).
  bool draw_frees_slot = false;
};

/// Result of `route`.
struct Routing {
  /// (T, k) int32: experts of each token, in descending order of the score that selected them.
  at::Tensor expert;
  at::Tensor slot;    ///< (T, k) int32: slot of each choice; -1: dropped
  at::Tensor weight;  ///< (T, k): weight of each choice; 0: dropped
  at::Tensor count;   ///< (E) int64: number of choices of each expert, dropped ones included
  /// (E) int64: number of kept choices of each expert. Their slots are 0 to kept - 1, without gaps.
  /// Undefined on the CPU, and where a random draw may leave gaps.
  at::Tensor kept;
  /// Scalar E sum_e f_e P_e, which is 1 for an even load. f_e: fraction of the counted choices
  /// (LoadCount) that chose expert e. P_e: mean p of expert e.
  at::Tensor load_loss;
  at::Tensor mean_score;  ///< (E): P_e over all tokens
  at::Tensor z_loss;      ///< scalar: mean of logsumexp(logits)^2 (Zoph et al. 2022)
  int64_t capacity = 0;   ///< capacity of each expert; 0 with Drop::kNone
};

/// Optional inputs of routing in addition to the logits. Each may be undefined.
struct RoutingInputs {
  /// (E): added to p only for the choice of experts, not for weights. It balances the load without
  /// a loss (DeepSeek-V3).
  at::Tensor bias;
  /// (T), random numbers uniform in [0, 1). The second of two choices is dropped if 2 w2 < draw
  /// (GShard). w2 is its weight normalized over both choices.
  at::Tensor draw;
  /// (T, k), integers: experts to use instead of choosing by logits. `route` checks the values of a
  /// CPU tensor; `check_chosen_values` checks others.
  at::Tensor chosen;
};

/// Routes tokens by logits (T, E). Float64 logits are computed in float64, every other floating
/// dtype in float32. Weights and losses have that dtype. `weight`, `load_loss` and `z_loss` are
/// differentiable; indices are constants.
///
/// Ties go to the lowest index of experts, groups and tokens. NaN counts as -infinity in the choice
/// of experts. Sums of p below 1e-20 are replaced by 1e-20. With sigmoid scores, P_e is the mean of
/// p_e divided by the token's sum of p. Results are the same in every run and with any number of
/// threads. All tensors are on one device. Sinkhorn scaling and BASE compute on the CPU: the host
/// waits for logits on a GPU. Throws UserError naming the argument that does not fit.
Routing route(const at::Tensor& logits, const RoutingSpec& spec, const RoutingInputs& inputs = {});

/// Computes Routing::load_loss = E sum_e f_e P_e, with f_e = counts[e] / choices. counts: (E),
/// choices of each expert; `choices`: their sum; mean_score: (E), P_e.
at::Tensor load_balance(const at::Tensor& counts, double choices, const at::Tensor& mean_score);
/// Returns E counts / choices, (E): the load of each expert relative to an even load. Dtype and
/// device come from `options`.
at::Tensor relative_load(const at::Tensor& counts, double choices,
                         const at::TensorOptions& options);

/// Result of `choose_tokens`.
struct ExpertChoice {
  at::Tensor token;   ///< (E, capacity) int32: tokens of each expert, descending by weight
  at::Tensor weight;  ///< (E, capacity): softmax of the token's logits over the experts
};
/// Chooses for each expert the `capacity` tokens with the largest weight (Zhou et al. 2022).
/// logits: (T, E). Every expert has the same load; a token has any number of experts.
ExpertChoice choose_tokens(const at::Tensor& logits, int64_t capacity);

/// Runs `choose_tokens` and returns the result as a Routing. The capacity is ceil(T k / E), but at
/// most T. Weights are multiplied by `scale`. Shapes (T, k) of the Routing have another k: the
/// maximum number of experts that chose one token. Unused entries have slot -1. load_loss is 0.
/// Places of the Routing are numbered on the CPU: the host waits for logits on a GPU.
Routing route_by_experts(const at::Tensor& logits, int64_t k, double scale);

/// Checks the logits of operation `op`. Throws UserError naming both, unless logits are floating,
/// (T, E) with E > 0, and on the CPU, meta or CUDA.
void check_logits(const char* op, const at::Tensor& logits);
/// Throws UserError unless each row of `chosen` (T, k) names different experts, 0 to `experts` - 1.
/// The host waits for a GPU.
void check_chosen_values(const at::Tensor& chosen, int64_t experts);

/// Throws UserError if `spec` is invalid for this number of experts. The message begins with
/// `owner`.
void check_spec(std::string_view owner, const RoutingSpec& spec, int64_t experts);

/// Computes the capacity by spec.capacity_rule, or returns spec.capacity if it is positive.
/// `largest_count` is the largest load of an expert. Only Tutel's rule with cf <= 0 reads it.
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
