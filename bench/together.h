#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

/// Pairs of capabilities on every kind of model. Each pair has an expected difference from runs
/// without one of them, or is refused for a reason.
namespace dovetail::together {

/// One of the engine's capabilities and the settings that enable it. Empty settings: the model does
/// not have it.
struct Capability {
  const char* name;
  /// Effect on the numbers of a run.
  const char* what;
  double most;  ///< maximum relative change of a loss; 0: bitwise equal
  bool ranks;   ///< true: needs two ranks
  std::vector<const char*> gpt, mixture, dlrm;
};

inline const std::array kCapabilities = {
    Capability{"mx",
               "other numbers: they are rounded",
               0.005,
               false,
               {"precision.recipe=mxfp8"},
               {"precision.recipe=mxfp8"},
               {"embedding.row_dtype=mxfp8"}},
    Capability{"moe",
               "rounding: experts are spread over two ranks",
               1e-6,
               true,
               {"parallel.expert=2"},
               {"parallel.expert=2"},
               {"model.moe.experts=4"}},
    Capability{
        "embedding",
        "rounding: tables are cut over two ranks, in two groups, most of their rows on the disk",
        1e-6,
        true,
        {"embedding.sharding=row"},
        {"embedding.sharding=row"},
        {"embedding.sharding=row", "embedding.groups=2", "embedding.memory_bytes=20000",
         "embedding.step_rows=50", "embedding.warmup_steps=5"}},
    Capability{"plan",
               "no bit",
               0,
               false,
               {"memory.budget=0.8x", "memory.solve_s=2"},
               {"memory.budget=0.8x", "memory.solve_s=2"},
               {"memory.budget=0.8x", "memory.solve_s=2"}},
    Capability{"hybrid, fixed",
               "rounding: of four micro-batches the second rank has three",
               1e-6,
               true,
               {"balance.mode=fixed", "balance.shares=[1, 3]"},
               {"balance.mode=fixed", "balance.shares=[1, 3]"},
               {"balance.mode=fixed", "balance.shares=[1, 3]"}},
    Capability{"hybrid, auto",
               "rounding: shares follow from what the two ranks took",
               1e-6,
               true,
               {"balance.mode=auto", "balance.gain=0"},
               {"balance.mode=auto", "balance.gain=0"},
               {"balance.mode=auto", "balance.gain=0"}}};

/// Indices into kCapabilities.
enum : size_t { kMx, kMoe, kEmbedding, kPlan, kFixed, kAuto };

/// Effect of another summation order, amplified by rounding to eight bits.
inline constexpr double kRoundingUnderMx = 1e-3;

/// Returns the maximum relative change of a loss when `moved` is added to a run with `kept`; 0:
/// bitwise equal. Shares that follow from measured times differ in each run.
inline double most_change(size_t moved, size_t kept) {
  const double most =
      std::max(kCapabilities[moved].most, kept == kAuto ? kCapabilities[kAuto].most : 0);
  return most > 0 && kept == kMx ? kRoundingUnderMx : most;
}

struct Model {
  const char* name;
  const char* toml;
  std::vector<const char*> Capability::* settings;
};

inline constexpr const char* kGptToml = R"(
[model]
layers = 2
width = 64
heads = 4
context = 64
[data]
tokenizer = { kind = "bytes" }
validation_split = "tail"
validation_fraction = 0.1
[precision]
recipe = "fp32"
)";
inline constexpr const char* kMoeToml = R"([model.moe]
experts = 4
k = 2
ffn_width = 64
every = 2
drop = "position"
capacity_factor = 1.25
pad_to_capacity = true
)";
inline constexpr const char* kDlrmToml = R"(
[recommender]
model = "dlrm"
dim = 8
bottom = [128, 128]
deep = [128, 128, 128]
grain = 4
[rows]
label = "clicked"
shuffle_window = 1000
dense = [{ columns = ["size"], transform = "standard" }]
sparse = [{ columns = ["user"], num_rows = 1000 }, { columns = ["item"], num_rows = 1000 }]
[embedding]
lr = 0.1
[precision]
recipe = "fp32"
)";

inline const std::string kMixtureToml = std::string(kGptToml) + kMoeToml;
inline const std::array kModels = {Model{"GPT", kGptToml, &Capability::gpt},
                                   Model{"mixture GPT", kMixtureToml.c_str(), &Capability::mixture},
                                   Model{"DLRM", kDlrmToml, &Capability::dlrm}};

/// Change that a capability causes in a run that also has the other one.
struct Change {
  double most = 0;  ///< maximum relative difference of the losses over all steps
  bool same_bits = false;
  double bound = 0;  ///< 0: same_bits is required
  bool holds() const { return bound == 0 ? same_bits : most <= bound; }
};

struct Cell {
  std::optional<std::string> refusal;
  std::array<Change, 2>
      without;  ///< compared with the run without the first, and without the second
};

inline std::string pair_name(size_t first, size_t second) {
  return fmt::format("{} + {}", kCapabilities[first].name, kCapabilities[second].name);
}

inline std::string words(const Change& change) {
  if (change.same_bits) return "the same bits";
  if (change.bound == 0)
    return fmt::format("**not the same bits** (losses within {:.1e})", change.most);
  if (change.most == 0) return "the same losses";
  return fmt::format("losses within {:.1e} ({:.0e} allowed)", change.most, change.bound);
}

/// Returns a text like "without plan: the same bits; without mx: losses within 1.2e-02
/// (5e-02 allowed)", or "refused: why".
inline std::string words(const Cell& cell, size_t first, size_t second) {
  if (cell.refusal) return "refused: " + *cell.refusal;
  return fmt::format("without {}: {}; without {}: {}", kCapabilities[first].name,
                     words(cell.without[0]), kCapabilities[second].name, words(cell.without[1]));
}

/// Returns the pairs of capabilities. Two values of balance.mode exclude each other in one config,
/// so they are no pair.
inline std::vector<std::pair<size_t, size_t>> pairs() {
  std::vector<std::pair<size_t, size_t>> found;
  for (size_t i = 0; i < kCapabilities.size(); ++i)
    for (size_t j = i + 1; j < kCapabilities.size(); ++j)
      if (!(i == kFixed && j == kAuto)) found.emplace_back(i, j);
  return found;
}

}  // namespace dovetail::together
