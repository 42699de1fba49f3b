#include "dovetail/ops/convolution.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <map>

#include "tests/ops/testing.h"

namespace dovetail::ops::convolution_test {
namespace {

using ::testing::HasSubstr;
using testing::normal;
using ::testing::ThrowsMessage;

constexpr double kRounding = 1.0 / (1 << 24);
constexpr auto kIm2col = ConvolutionAlgorithm::kIm2col, kWinograd = ConvolutionAlgorithm::kWinograd;

struct Case {
  int64_t batch, channels, filters, height, width, kernel_height, kernel_width;
  std::array<int64_t, 2> stride, padding;

  ConvolutionOptions options(ConvolutionAlgorithm algorithm) const {
    return {stride, padding, algorithm};
  }
  std::array<int64_t, 4> x_sizes() const { return {batch, channels, height, width}; }
  std::array<int64_t, 4> weight_sizes() const {
    return {filters, channels, kernel_height, kernel_width};
  }
};
// Sizes near a tile, a vector of tiles and the blocks of the product. Both paddings occur, and more
// rows of tiles than one block has.
const std::vector<Case> kThreeByThree = {
    {1, 1, 1, 3, 3, 3, 3, {1, 1}, {0, 0}},     {2, 3, 5, 7, 9, 3, 3, {1, 1}, {1, 1}},
    {1, 17, 33, 13, 6, 3, 3, {1, 1}, {0, 1}},  {3, 31, 8, 4, 4, 3, 3, {1, 1}, {1, 1}},
    {2, 5, 19, 30, 67, 3, 3, {1, 1}, {1, 0}},  {1, 64, 37, 1, 2, 3, 3, {1, 1}, {2, 2}},
    {3, 67, 64, 33, 33, 3, 3, {1, 1}, {1, 1}},
};
const std::vector<Case> kOthers = {
    {2, 3, 5, 11, 8, 3, 3, {2, 2}, {1, 1}}, {1, 4, 7, 9, 9, 1, 1, {1, 1}, {0, 0}},
    {2, 6, 3, 7, 5, 1, 1, {2, 1}, {0, 0}},  {1, 2, 3, 13, 12, 5, 7, {3, 2}, {2, 3}},
    {2, 3, 2, 4, 17, 2, 3, {1, 1}, {3, 4}},
};

struct Tensors {
  explicit Tensors(const Case& c)
      : x(normal(c.x_sizes(), 1)),
        weight(normal(c.weight_sizes(), 2)),
        bias(normal({c.filters}, 3)) {
    dy = normal(forward(c, x, weight, bias).sizes(), 4);
  }
  static at::Tensor forward(const Case& c, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias) {
    return at::conv2d(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), c.stride,
                      c.padding);
  }
  static std::tuple<at::Tensor, at::Tensor, at::Tensor> backward(const Case& c,
                                                                 const at::Tensor& dy,
                                                                 const at::Tensor& x,
                                                                 const at::Tensor& weight) {
    return at::convolution_backward(dy.to(at::kDouble), x.to(at::kDouble), weight.to(at::kDouble),
                                    {{c.filters}}, c.stride, c.padding, {1, 1}, false, {0, 0}, 1,
                                    {true, true, true});
  }
  at::Tensor x, weight, bias, dy;
};

/// |actual - expected| <= terms 2^-24 magnitude everywhere.
void expect_within(const at::Tensor& actual, const at::Tensor& expected,
                   const at::Tensor& magnitude, int64_t terms) {
  ASSERT_EQ(actual.sizes(), expected.sizes());
  const at::Tensor error = (actual.to(at::kDouble) - expected).abs();
  const at::Tensor bound = magnitude * (static_cast<double>(terms) * kRounding);
  EXPECT_TRUE((error <= bound).all().item<bool>())  // also fails for NaN
      << "error " << error.max().item<double>() << " at a bound of " << bound.max().item<double>();
}

/// |A^T| (sum of |G| |g| |G^T| times |B^T| |d| |B|) |A|, in float64: what the bound of winograd.h
/// multiplies.
at::Tensor winograd_magnitude(const at::Tensor& x, const at::Tensor& weight,
                              std::array<int64_t, 2> padding) {
  const auto matrix = [](std::vector<double> values, int64_t rows) {
    return at::tensor(values, at::kDouble).view({rows, -1}).abs();
  };
  const at::Tensor b = matrix({4, 0,  -5, 0, 1, 0, 0, -4, -4, 1,  1, 0, 0, 4, -4, -1, 1, 0,
                               0, -2, -1, 2, 1, 0, 0, 2,  -1, -2, 1, 0, 0, 4, 0,  -5, 0, 1},
                              6);
  const at::Tensor g = matrix({1. / 4, 0, 0, -1. / 6, -1. / 6, -1. / 6, -1. / 6, 1. / 6, -1. / 6,
                               1. / 24, 1. / 12, 1. / 6, 1. / 24, -1. / 12, 1. / 6, 0, 0, 1},
                              6);
  const at::Tensor a =
      matrix({1, 1, 1, 1, 1, 0, 0, 1, -1, 2, -2, 0, 0, 1, 1, 4, 4, 0, 0, 1, -1, 8, -8, 1}, 4);
  const int64_t height = x.size(2) + 2 * padding[0] - 2, width = x.size(3) + 2 * padding[1] - 2;
  const int64_t rows = (height + 3) / 4, columns = (width + 3) / 4;
  const at::Tensor padded = at::constant_pad_nd(
      x.to(at::kDouble).abs(), {padding[1], 4 * columns + 2 - x.size(3) - padding[1], padding[0],
                                4 * rows + 2 - x.size(2) - padding[0]});
  const at::Tensor v = b.matmul(padded.unfold(2, 6, 4).unfold(3, 6, 4))
                           .matmul(b.t());  // (N, C, rows, columns, 6, 6)
  const at::Tensor u = g.matmul(weight.to(at::kDouble).abs()).matmul(g.t());
  const at::Tensor y = a.matmul(at::einsum("kcij,ncrsij->nkrsij", {u, v})).matmul(a.t());
  return y.permute({0, 1, 2, 4, 3, 5})
      .reshape({x.size(0), weight.size(0), 4 * rows, 4 * columns})
      .narrow(2, 0, height)
      .narrow(3, 0, width);
}

std::string describe(const Case& c) {
  return fmt::format("{} x {} to {} of {} x {} by {} x {}", c.batch, c.channels, c.filters,
                     c.height, c.width, c.kernel_height, c.kernel_width);
}

TEST(Convolution, ByColumnsIsWithinTheBoundOfItsSums) {
  std::vector<Case> cases = kThreeByThree;
  cases.insert(cases.end(), kOthers.begin(), kOthers.end());
  testing::at_every_simd_level([&] {
    for (const Case& c : cases) {
      SCOPED_TRACE(describe(c));
      const Tensors t(c);
      const int64_t taps = c.kernel_height * c.kernel_width;
      const ConvolutionOptions options = c.options(kIm2col);
      expect_within(
          convolution(t.x, t.weight, t.bias, options), Tensors::forward(c, t.x, t.weight, t.bias),
          Tensors::forward(c, t.x.abs(), t.weight.abs(), t.bias.abs()), c.channels * taps + 2);
      const auto [dx, dweight, dbias] = Tensors::backward(c, t.dy, t.x, t.weight);
      const auto [x_size, weight_size, bias_size] =
          Tensors::backward(c, t.dy.abs(), t.x.abs(), t.weight.abs());
      const int64_t pixels = t.dy.numel() / c.filters;
      expect_within(convolution_backward_data(t.dy, t.weight, c.x_sizes(), options), dx, x_size,
                    c.filters * taps + 2);
      const ConvolutionGradients made =
          convolution_backward_weight(t.dy, t.x, c.weight_sizes(), options);
      expect_within(made.weight, dweight, weight_size, pixels + 2);
      expect_within(made.bias, dbias, bias_size, pixels + 2);
    }
  });
}

TEST(Convolution, ByWinogradIsWithinItsBound) {
  testing::at_every_simd_level([&] {
    for (const Case& c : kThreeByThree) {
      SCOPED_TRACE(describe(c));
      const Tensors t(c);
      const ConvolutionOptions options = c.options(kWinograd);
      const at::Tensor sizes =
          winograd_magnitude(t.x, t.weight, c.padding) + t.bias.abs().view({-1, 1, 1});
      expect_within(convolution(t.x, t.weight, t.bias, options),
                    Tensors::forward(c, t.x, t.weight, t.bias), sizes, c.channels + 32);
      expect_within(
          convolution_backward_data(t.dy, t.weight, c.x_sizes(), options),
          std::get<0>(Tensors::backward(c, t.dy, t.x, t.weight)),
          winograd_magnitude(t.dy, t.weight.transpose(0, 1), {2 - c.padding[0], 2 - c.padding[1]}),
          c.filters + 32);
      // The bound assumes the worst signs; random signs have a much smaller error.
      const at::Tensor y = convolution(t.x, t.weight, {}, options).to(at::kDouble);
      const at::Tensor expected = Tensors::forward(c, t.x, t.weight, at::zeros({c.filters}));
      EXPECT_LT((y - expected).norm().item<double>(), 5e-6 * expected.norm().item<double>());
    }
  });
}

TEST(Convolution, BitsDoNotDependOnThreads) {
  const Case c = kThreeByThree.back();  // several blocks of tiles
  const Tensors t = [&] {
    const testing::Threads one(1);
    return Tensors(c);
  }();
  const auto results = [&](int threads) {
    const testing::Threads set(threads);
    std::vector<at::Tensor> out;
    for (const auto algorithm : {kIm2col, kWinograd}) {
      out.push_back(convolution(t.x, t.weight, t.bias, c.options(algorithm)));
      out.push_back(convolution_backward_data(t.dy, t.weight, c.x_sizes(), c.options(algorithm)));
    }
    out.push_back(
        convolution_backward_weight(t.dy, t.x, c.weight_sizes(), c.options(kIm2col)).weight);
    return out;
  };
  const auto one = results(1), three = results(3);
  for (size_t i = 0; i < one.size(); ++i)
    testing::expect_same_bits(one[i], three[i], std::to_string(i));
}

TEST(Convolution, TakesAnyStrides) {
  const testing::Threads one(1);
  const Case c = kThreeByThree[1];
  const Tensors t(c);
  const at::Tensor x = t.x.transpose(2, 3).contiguous().transpose(2, 3);
  const at::Tensor weight = t.weight.contiguous(at::MemoryFormat::ChannelsLast);
  for (const auto algorithm : {kIm2col, kWinograd})
    testing::expect_same_bits(convolution(x, weight, t.bias, c.options(algorithm)),
                              convolution(t.x, t.weight, t.bias, c.options(algorithm)));
}

/// The most bytes that tensors have held at once since it was made.
class Held : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void* pointer, int64_t bytes, size_t, size_t, c10::Device) override {
    if (bytes > 0) live_[pointer] = bytes;
    now_ += bytes > 0 ? bytes : live_.contains(pointer) ? bytes : 0;
    if (bytes < 0) live_.erase(pointer);
    most_ = std::max(most_, now_);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t most() const { return most_; }

 private:
  std::map<void*, int64_t> live_;
  int64_t now_ = 0, most_ = 0;
};

template <class Work>
int64_t most_held(Work&& work) {
  const auto held = std::make_shared<Held>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, held);
  work();
  return held->most();
}

TEST(Convolution, TakesTheWorkspaceThatItSays) {
  const testing::Threads one(1);
  std::vector<Case> cases = kThreeByThree;
  cases.insert(cases.end(), kOthers.begin(), kOthers.end());
  for (const Case& c : cases) {
    SCOPED_TRACE(describe(c));
    const Tensors t(c);
    const auto expect = [&](ConvolutionPass pass, ConvolutionAlgorithm algorithm, int64_t made,
                            auto&& work) {
      if (why_not(pass, c.weight_sizes(), c.options(algorithm))) return;
      EXPECT_EQ(
          most_held([&] { work(c.options(algorithm)); }) - made,
          convolution_workspace_bytes(pass, c.x_sizes(), c.weight_sizes(), c.options(algorithm)));
    };
    for (const auto algorithm : {kIm2col, kWinograd}) {
      expect(ConvolutionPass::kForward, algorithm, 4 * t.dy.numel(),
             [&](const auto& options) { convolution(t.x, t.weight, t.bias, options); });
      expect(ConvolutionPass::kBackwardData, algorithm, 4 * t.x.numel(), [&](const auto& options) {
        convolution_backward_data(t.dy, t.weight, c.x_sizes(), options);
      });
      expect(ConvolutionPass::kBackwardWeight, algorithm, 4 * (t.weight.numel() + c.filters),
             [&](const auto& options) {
               convolution_backward_weight(t.dy, t.x, c.weight_sizes(), options);
             });
    }
  }
}

TEST(Convolution, AnEmptyBatchGivesNothingAndNoGradient) {
  Case c = kThreeByThree[1];
  c.batch = 0;
  const at::Tensor x = at::empty(c.x_sizes()), weight = normal(c.weight_sizes(), 1),
                   dy = at::empty({0, 5, 7, 9});
  for (const auto algorithm : {kIm2col, kWinograd}) {
    EXPECT_EQ(convolution(x, weight, {}, c.options(algorithm)).sizes(), dy.sizes());
    EXPECT_EQ(convolution_backward_data(dy, weight, c.x_sizes(), c.options(algorithm)).sizes(),
              x.sizes());
  }
  const auto made = convolution_backward_weight(dy, x, c.weight_sizes(), c.options(kIm2col));
  EXPECT_EQ(made.weight.abs().sum().item<float>() + made.bias.abs().sum().item<float>(), 0);
}

TEST(Convolution, SaysWhatItCannotDo) {
  const at::Tensor x = normal({1, 3, 8, 8}, 1), weight = normal({4, 3, 3, 3}, 2),
                   five = normal({4, 3, 5, 5}, 3);
  const auto message = [](const std::string& text) {
    return ThrowsMessage<UserError>(HasSubstr(text));
  };
  EXPECT_THAT([&] { convolution(x, five, {}, {.algorithm = kWinograd}); },
              message("winograd is for filters of 3 x 3, and the weight is [4, 3, 5, 5]"));
  EXPECT_THAT([&] { convolution(x, weight, {}, {.stride = {2, 1}, .algorithm = kWinograd}); },
              message("winograd is for stride 1, not [2, 1]"));
  EXPECT_THAT(
      [&] {
        convolution_backward_data(normal({1, 4, 12, 12}, 4), weight, x.sizes(),
                                  {.padding = {3, 3}, .algorithm = kWinograd});
      },
      message("padding up to 2, not [3, 3]"));
  EXPECT_THAT(
      [&] {
        convolution_backward_weight(normal({1, 4, 6, 6}, 4), x, weight.sizes(),
                                    {.algorithm = kWinograd});
      },
      message("winograd does not make gradients of weights"));
  EXPECT_THAT([&] { convolution(x, normal({4, 2, 3, 3}, 2), {}, {}); }, message("with the same C"));
  EXPECT_THAT([&] { convolution(x, normal({4, 3, 9, 9}, 2), {}, {}); }, message("do not fit"));
  EXPECT_THAT([&] { convolution(x, weight, {}, {.stride = {0, 1}}); },
              message("stride [0, 1] must be positive"));
  EXPECT_THAT([&] { convolution(x.to(at::kDouble), weight, {}, {}); },
              message("x must be [1, 3, 8, 8] float32"));
  EXPECT_THAT([&] { convolution(x, weight, normal({3}, 1), {}); },
              message("bias must be [4] float32"));
  EXPECT_THAT([&] { convolution_backward_data(normal({1, 4, 6, 5}, 4), weight, x.sizes(), {}); },
              message("dy must be [1, 4, 6, 6] float32"));
  EXPECT_THAT([] { convolution_algorithm("fft"); }, message("no algorithm is named \"fft\""));
}

}  // namespace
}  // namespace dovetail::ops::convolution_test
