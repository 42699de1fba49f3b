// Recommenders that read sequences, whose dense part trains within a memory budget.
#include <gtest/gtest.h>

#include "tests/train/planned_recommender.h"

namespace dovetail::train::planned_sequences_test {
namespace {

using test::gives_the_same_bits_within_its_budget;
using test::SlowTier;

// Storages below the minimum size for offloading are a larger part of this model's step.
TEST(PlannedSequences, OfDinGiveTheSameBitsWithinTheirBudget) {
  gives_the_same_bits_within_its_budget("din", "0.97x", SlowTier::kNone);
}

TEST(PlannedSequences, OfDienGiveTheSameBitsWithinTheirBudget) {
  gives_the_same_bits_within_its_budget("dien", "0.6x", SlowTier::kDisk);
}

TEST(PlannedSequences, OfCanGiveTheSameBitsWithinTheirBudget) {
  gives_the_same_bits_within_its_budget("can", "0.97x", SlowTier::kNone);
}

}  // namespace
}  // namespace dovetail::train::planned_sequences_test
