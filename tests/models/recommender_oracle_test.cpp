// Recommenders against their papers' definitions in PyTorch (recommender_oracle.py), which share no
// code with ours.
#include "recommender_oracle.h"

namespace dovetail::models::recommender_oracle_test {
namespace {

using namespace oracle;

TEST_F(RecommenderOracle, ForwardAndGradientsAgree) {
  for (const Case& c : cases()) {
    const io::SafetensorsFile expected(path(c, ".expected.safetensors"));
    const auto compare = [&](const std::string& name, const at::Tensor& ours) {
      const at::Tensor theirs = expected.read(name);
      ASSERT_EQ(ours.sizes(), theirs.sizes()) << c.name << " " << name;
      EXPECT_LT(testing::largest_difference(ours, theirs),
                1e-5 * std::max(1.0, theirs.abs().max().item<double>()))
          << c.name << " " << name;
      EXPECT_GT(theirs.abs().max().item<double>(), name == "auxiliary" ? -1 : 1e-4)
          << c.name << " " << name;
    };
    for (const auto& [name, ours] : results_of(c, at::kFloat)) compare(name, ours);
  }
}

/// The reference without one of the terms that make a model what it is gives something else.
TEST_F(RecommenderOracle, EachDefiningTermMatters) {
  int terms = 0;
  for (const Case& c : cases()) {
    const io::SafetensorsFile expected(path(c, ".expected.safetensors"));
    const at::Tensor with =
        at::cat({expected.read("logits").flatten(), expected.read("auxiliary").view(1)});
    for (const auto& name : expected.names()) {
      if (!name.starts_with("without.") || c.name == "dien_without_auxiliary") continue;
      EXPECT_GT(testing::largest_difference(with, expected.read(name)), 1e-2)
          << c.name << " " << name;
      ++terms;
    }
  }
  EXPECT_EQ(terms, 6);
}

}  // namespace
}  // namespace dovetail::models::recommender_oracle_test
