#pragma once

#include <cstdint>

namespace dovetail::moe {

/// Placement of expert parameters on ranks. Each group of `cut` neighbouring ranks is a holder,
/// which holds a range of experts. Each rank of a holder has one slice of the hidden elements of
/// these experts. Parameters stay there whatever plan a step uses.
struct Placement {
  int64_t experts = 1;
  int ranks = 1, cut = 1;

  int holders() const { return ranks / cut; }
  int holder(int rank) const { return rank / cut; }
  int slice(int rank) const { return rank % cut; }
  /// Holder h has experts [first(h), first(h + 1)). Counts of two holders differ by at most 1.
  int64_t first(int holder) const { return experts * holder / holders(); }
  int64_t count(int holder) const { return first(holder + 1) - first(holder); }
  int holder_of(int64_t expert) const;
};

/// Returns the placement with the given `cut`. 0 selects the minimum: 1 if there are at least as
/// many experts as ranks. Throws UserError naming parallel.expert and parallel.expert_tensor if
/// `cut` does not fit. There must be ranks / cut holders with at least one expert each. `cut` must
/// divide ffn_width, and experts that are cut have no biases.
Placement make_placement(int64_t experts, int ranks, int cut, int64_t ffn_width, bool bias);

}  // namespace dovetail::moe
