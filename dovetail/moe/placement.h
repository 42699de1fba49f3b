#pragma once

#include <cstdint>

namespace dovetail::moe {

/// Which rank holds what of which expert. Every `cut` neighbours of the `ranks` hold a range of
/// experts together, each rank one slice of the hidden elements of all of them: parameters stay
/// there whatever a step does with them.
struct Placement {
  int64_t experts = 1;
  int ranks = 1, cut = 1;

  int holders() const { return ranks / cut; }
  int holder(int rank) const { return rank / cut; }
  int slice(int rank) const { return rank % cut; }
  /// Holder h has experts [first(h), first(h + 1)): equally many, or one more on some.
  int64_t first(int holder) const { return experts * holder / holders(); }
  int64_t count(int holder) const { return first(holder + 1) - first(holder); }
  int holder_of(int64_t expert) const;
};

/// The least `cut` for `experts` on `ranks`: 1 where there are enough of them. Throws UserError
/// naming parallel.expert and parallel.expert_tensor for a `cut` (0: the least) that does not fit:
/// ranks / cut holders of at least one expert, hidden elements of `ffn_width` in equal slices, and
/// no biases in experts that are cut.
Placement make_placement(int64_t experts, int ranks, int cut, int64_t ffn_width, bool bias);

}  // namespace dovetail::moe
