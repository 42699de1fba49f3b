#pragma once

#include <cstdint>

namespace dovetail::moe {

/// Placement of expert parameters on ranks. Each group of `cut` neighbouring ranks is a holder,
/// which holds a range of experts. Each rank of a holder has one slice of each of these experts: a
/// range of their hidden elements. Parameters stay there, whatever ExpertLayout a step uses.
struct Placement {
  int64_t experts = 1;  ///< number of experts of a layer
  /// ranks: number of ranks that hold the experts. cut: number of ranks over which each expert is
  /// cut; 1: experts stay whole.
  int ranks = 1, cut = 1;

  int holders() const { return ranks / cut; }
  /// Returns the holder to which `rank` belongs.
  int holder(int rank) const { return rank / cut; }
  /// Returns the index of the slice that `rank` has of each of its holder's experts.
  int slice(int rank) const { return rank % cut; }
  /// Returns the first expert of `holder`, which has experts [first(holder), first(holder + 1)).
  /// Counts of two holders differ by at most 1.
  int64_t first(int holder) const { return experts * holder / holders(); }
  int64_t count(int holder) const { return first(holder + 1) - first(holder); }
  int holder_of(int64_t expert) const;  ///< holder that has this expert
};

/// Returns the placement with `cut` ranks per holder. A `cut` of 0 selects the minimum that gives
/// every holder an expert: ranks / experts, rounded up. `cut` must divide `ranks` and the experts'
/// hidden width `ffn_width`. Each holder must have at least one expert. `bias` must be false if
/// experts are cut. Otherwise throws UserError naming parallel.expert (`ranks`) or
/// parallel.expert_tensor (`cut`).
Placement make_placement(int64_t experts, int ranks, int cut, int64_t ffn_width, bool bias);

}  // namespace dovetail::moe
