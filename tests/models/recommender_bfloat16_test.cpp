// Recommenders whose Linears compute in bfloat16, against PyTorch with explicit casts
// (recommender_oracle.py).
#include <gmock/gmock.h>

#include "recommender_oracle.h"

namespace dovetail::models::recommender_bfloat16_test {
namespace {

using namespace oracle;

double root_mean_square(const at::Tensor& x) {
  return x.to(at::kDouble).square().mean().sqrt().item<double>();
}

/// The reference adds exactly, so a result may differ by a rounding. Results of the same model in
/// float32 differ by all roundings to bfloat16. Autograd adds the gradients of a recurrent weight
/// over the events in bfloat16.
TEST_F(RecommenderOracle, BFloat16RoundsWhereTheReferenceDoes) {
  for (const Case& c : cases()) {
    const io::SafetensorsFile expected(path(c, ".expected.safetensors"));
    const Found narrow = results_of(c, at::kBFloat16), wide = results_of(c, at::kFloat);
    double all = 0, all_of_wide = 0;
    for (const auto& [name, ours] : narrow) {
      const at::Tensor theirs = expected.read("bf16." + name);
      ASSERT_EQ(ours.sizes(), theirs.sizes()) << c.name << " " << name;
      const double scale = std::max(1e-6, root_mean_square(theirs)),
                   error = root_mean_square(ours - theirs) / scale,
                   of_wide = root_mean_square(wide.at(name) - theirs) / scale;
      const bool recurrent = name.ends_with(".state.weight");
      EXPECT_LT(error, (recurrent ? 2 : 0.5) * of_wide + 1e-6) << c.name << " " << name;
      all += error;
      all_of_wide += of_wide;
    }
    EXPECT_LT(all, 0.1 * all_of_wide) << c.name;
    EXPECT_GT(all_of_wide, 1e-3 * static_cast<double>(narrow.size())) << c.name;
  }
}

/// Gradients have the dtype of their tensor.
TEST_F(RecommenderOracle, OnlyLinearsBelowTheHeadsAreBFloat16) {
  for (const Case& c : cases()) {
    for (const auto& [name, ours] : results_of(c, at::kBFloat16)) {
      const bool of_linear = name.ends_with(".weight") || name.ends_with(".bias");
      const bool head = name.starts_with("grad.head") || name.starts_with("grad.wide") ||
                        name.find(".out.") != std::string::npos;
      EXPECT_EQ(ours.scalar_type(), of_linear && !head ? at::kBFloat16 : at::kFloat)
          << c.name << " " << name;
    }
  }
}

TEST(RecommenderBFloat16, RefusesOtherDtypes) {
  const auto model = make_recommender(config_of("dlrm"), {.dense = 2, .sparse = 4});
  EXPECT_THAT(testing::user_error([&] { model->set_compute_dtype(at::kHalf); }),
              ::testing::HasSubstr("use float32 or bfloat16"));
}

}  // namespace
}  // namespace dovetail::models::recommender_bfloat16_test
