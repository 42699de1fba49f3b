#include "dovetail/moe/grouped_linear.h"

#include <gtest/gtest.h>

#include <vector>

#include "dovetail/moe/experts.h"
#include "tests/moe/random.h"

namespace dovetail::moe::grouped_linear_test {
namespace {

using testing::expect_close;

const std::vector<int64_t> kCount = {3, 0, 17, 1};
constexpr int64_t kRows = 21, kIn = 6;

struct Run {
  at::Tensor y;
  std::vector<at::Tensor> gradients;
};

/// `op` of x (kRows, kIn) and leaves of the given sizes.
template <class Op>
Run run(const std::vector<std::vector<int64_t>>& sizes, Op op) {
  std::vector<at::Tensor> leaves = {random({kRows, kIn}, 1).requires_grad_()};
  for (const auto& size : sizes) leaves.push_back(random(size, 2 + leaves.size()).requires_grad_());
  Run out{.y = op(leaves), .gradients = {}};
  out.y.backward(random(out.y.sizes(), 99));
  for (const at::Tensor& leaf : leaves)
    out.gradients.push_back(leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf));
  return out;
}

void expect_same(const Run& found, const Run& expected) {
  expect_close(found.y, expected.y, 1e-13, "y");
  for (size_t i = 0; i < found.gradients.size(); ++i)
    expect_close(found.gradients[i], expected.gradients[i], 1e-13, "gradient " + std::to_string(i));
}

/// f(e, rows of group e), one group after another.
template <class F>
at::Tensor group_by_group(const at::Tensor& x, F f) {
  std::vector<at::Tensor> made;
  int64_t first = 0;
  for (size_t e = 0; e < kCount.size(); first += kCount[e], ++e)
    made.push_back(f(e, x.narrow(0, first, kCount[e])));
  return at::cat(made);
}

TEST(GroupedLinear, WeightsOfTheirOwnAreThoseOfEachGroup) {
  for (const bool bias : {false, true}) {
    std::vector<std::vector<int64_t>> sizes(kCount.size(), {5, kIn});
    if (bias) sizes.insert(sizes.end(), kCount.size(), {5});
    const auto found = run(sizes, [&](const std::vector<at::Tensor>& leaves) {
      const at::TensorList all(leaves);
      return grouped_linear(leaves[0], all.slice(1, 4), kCount,
                            bias ? all.slice(5, 4) : at::TensorList());
    });
    const auto expected = run(sizes, [&](const std::vector<at::Tensor>& leaves) {
      return group_by_group(leaves[0], [&](size_t e, const at::Tensor& rows) {
        const at::Tensor y = rows.matmul(leaves[1 + e].t());
        return bias ? y + leaves[5 + e] : y;
      });
    });
    expect_same(found, expected);
  }
}

TEST(GroupedLinear, FeedForwardsOfRowsAreThoseOfEachExpert) {
  const std::vector<int64_t> widths = {4, 4, 9, 2};  // the two equal widths form one product
  std::vector<std::vector<int64_t>> sizes;
  for (const int64_t width : widths) sizes.push_back({width, kIn});
  for (const int64_t width : widths) sizes.push_back({kIn, width});
  for (const int64_t width : widths) sizes.push_back({width});
  sizes.insert(sizes.end(), widths.size(), {kIn});
  const auto found = run(sizes, [&](const std::vector<at::Tensor>& leaves) {
    const auto part = [&](size_t i) {
      return std::vector(leaves.begin() + static_cast<int64_t>(1 + 4 * i),
                         leaves.begin() + static_cast<int64_t>(5 + 4 * i));
    };
    return feed_forward_rows(leaves[0], kCount,
                             {.activation = "relu2",
                              .up = part(0),
                              .down = part(1),
                              .up_bias = part(2),
                              .down_bias = part(3)});
  });
  const auto expected = run(sizes, [&](const std::vector<at::Tensor>& leaves) {
    return group_by_group(leaves[0], [&](size_t e, const at::Tensor& rows) {
      const at::Tensor h = rows.matmul(leaves[1 + e].t()) + leaves[9 + e];
      return h.clamp_min(0).square().matmul(leaves[5 + e].t()) + leaves[13 + e];
    });
  });
  expect_same(found, expected);
}

}  // namespace
}  // namespace dovetail::moe::grouped_linear_test
