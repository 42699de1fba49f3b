#pragma once

#include <array>
#include <string_view>

/// Names in config files of the enumerators in routing.h, in the same order.
namespace dovetail::moe {

inline constexpr std::array<std::string_view, 4> kSelectionNames = {"top_k", "sinkhorn", "base",
                                                                    "balanced"};
/// Values of model.moe.router.
inline constexpr std::array<std::string_view, 7> kRouterNames = {
    "top_k", "noisy_top_k", "sinkhorn", "base", "balanced", "expert_choice", "hash"};
/// Values of model.moe.load_scope.
inline constexpr std::array<std::string_view, 4> kLoadScopeNames = {"auto", "micro_batch",
                                                                    "sequence", "global_batch"};
inline constexpr std::array<std::string_view, 2> kScoreNames = {"softmax", "sigmoid"};
inline constexpr std::array<std::string_view, 3> kNormalizeNames = {"before", "after", "none"};
inline constexpr std::array<std::string_view, 2> kSlotOrderNames = {"choice", "token"};
inline constexpr std::array<std::string_view, 3> kDropNames = {"position", "probability", "none"};
inline constexpr std::array<std::string_view, 2> kGroupScoreNames = {"top2", "max"};
inline constexpr std::array<std::string_view, 2> kLoadCountNames = {"first_choice", "all_choices"};
inline constexpr std::array<std::string_view, 5> kCapacityRuleNames = {
    "tutel", "switch", "megatron", "megablocks", "mesh_tf"};

}  // namespace dovetail::moe
