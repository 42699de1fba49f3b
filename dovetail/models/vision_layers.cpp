#include "dovetail/models/vision_layers.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dovetail/base/error.h"

namespace dovetail::models {
namespace {

at::Tensor float_parameter(torch::nn::Module& module, const char* name, at::IntArrayRef sizes,
                           c10::Device device) {
  return module.register_parameter(name,
                                   at::empty(sizes, at::TensorOptions(at::kFloat).device(device)));
}

/// Returns an empty result on the meta device, and counts its products.
at::Tensor meta_result(at::IntArrayRef sizes, int64_t products) {
  meta_products() += static_cast<double>(products);
  return at::empty(sizes, at::TensorOptions(at::kFloat).device(c10::kMeta));
}

}  // namespace

double& meta_products() {
  static thread_local double products = 0;
  return products;
}

Convolution::Convolution(const Options& options)
    : stride_(options.stride), padding_(options.kernel / 2) {
  DOVETAIL_CHECK(options.kernel % 2 == 1, "a kernel of {} cannot be padded evenly", options.kernel);
  weight_ = float_parameter(
      *this, "weight", {options.out, options.in, options.kernel, options.kernel}, options.device);
  if (options.bias) bias_ = float_parameter(*this, "bias", {options.out}, options.device);
}

at::Tensor Convolution::forward(const at::Tensor& x) const {
  if (x.is_meta()) {
    const auto strided = [this](int64_t size) { return (size - 1) / stride_ + 1; };
    const int64_t batch = x.size(0), height = strided(x.size(2)), width = strided(x.size(3));
    return meta_result({batch, weight_.size(0), height, width},
                       batch * height * width * weight_.numel());
  }
  return at::conv2d(x, weight_, bias_, {stride_, stride_}, {padding_, padding_});
}

Upsampling::Upsampling(int64_t in, int64_t out, c10::Device device)
    : weight_(float_parameter(*this, "weight", {in, out, 2, 2}, device)),
      bias_(float_parameter(*this, "bias", {out}, device)) {}

at::Tensor Upsampling::forward(const at::Tensor& x) const {
  if (x.is_meta())
    return meta_result({x.size(0), weight_.size(1), 2 * x.size(2), 2 * x.size(3)},
                       x.size(0) * x.size(2) * x.size(3) * weight_.numel());
  return at::conv_transpose2d(x, weight_, bias_, {2, 2});
}

BatchNorm::BatchNorm(int64_t channels, c10::Device device)
    : weight_(float_parameter(*this, "weight", {channels}, device)),
      bias_(float_parameter(*this, "bias", {channels}, device)) {
  const auto options = at::TensorOptions(at::kFloat).device(device);
  mean_ = register_buffer("running_mean", at::zeros({channels}, options));
  variance_ = register_buffer("running_var", at::ones({channels}, options));
  batches_ = register_buffer("num_batches_tracked", at::zeros({}, options.dtype(at::kLong)));
}

at::Tensor BatchNorm::forward(const at::Tensor& x) {
  constexpr double kMomentum = 0.1, kEpsilon = 1e-5;
  if (x.is_meta()) return meta_result(x.sizes(), /*products=*/0);
  if (is_training()) {
    user_check(x.numel() != x.size(1),
               "{}: a batch norm in training needs more than one value to a channel, but its input "
               "is [{}]. Give more images or larger ones",
               current_layer(), fmt::join(x.sizes(), ", "));
    batches_.add_(1);
  }
  return at::batch_norm(x, weight_, bias_, mean_, variance_, is_training(), kMomentum, kEpsilon,
                        at::globalContext().userEnabledCuDNN());
}

Dense::Dense(int64_t in, int64_t out, c10::Device device)
    : weight_(float_parameter(*this, "weight", {out, in}, device)),
      bias_(float_parameter(*this, "bias", {out}, device)) {}

at::Tensor Dense::forward(const at::Tensor& x) const {
  if (x.is_meta()) return meta_result({x.size(0), weight_.size(0)}, x.size(0) * weight_.numel());
  return at::linear(x, weight_, bias_);
}

at::Tensor Relu::forward(const at::Tensor& x) const {
  if (!in_place_) return at::relu(x);
  at::Tensor y = x;
  return at::relu_(y);
}

at::Tensor Dropout::forward(const at::Tensor& x) const {
  return at::dropout(x, 0.5, is_training());
}

at::Tensor MaxPool::forward(const at::Tensor& x) const {
  const int64_t padding = kernel_ % 2 == 1 ? kernel_ / 2 : 0;
  return at::max_pool2d(x, {kernel_, kernel_}, {stride_, stride_}, {padding, padding});
}

at::Tensor AdaptiveAveragePool::forward(const at::Tensor& x) const {
  if (x.is_meta()) return meta_result({x.size(0), x.size(1), size_, size_}, /*products=*/0);
  return at::adaptive_avg_pool2d(x, {size_, size_});
}

}  // namespace dovetail::models
