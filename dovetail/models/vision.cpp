#include "dovetail/models/vision.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/layer_scope.h"
#include "dovetail/base/rng.h"
#include "dovetail/models/normal_values.h"
#include "dovetail/models/vision_layers.h"
#include "dovetail/models/vision_models.h"

namespace dovetail::models {
namespace {

/// Returns the fan of a convolution without regard to strides: the outputs that read an input
/// value. For unet, the inputs that an output value reads.
int64_t fan(const VisionModel& model, std::string_view name, const at::Tensor& weight) {
  if (model.config().preset != "unet") return weight.size(0) * weight[0][0].numel();
  // Kernels of an up-sampling do not overlap.
  if (name.ends_with("upsample.weight")) return weight.size(0);
  return weight[0].numel();
}

/// Adds up the new results of the operators that a function calls.
class ResultBytes {
 public:
  explicit ResultBytes(const std::function<void()>& work) {
    counting = this;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(nullptr, [](const at::RecordFunction& function,
                                               at::ObserverContext*) { counting->add(function); })
            .needsOutputs(true)
            .scopes({at::RecordScope::FUNCTION}));
    work();
    at::removeCallback(handle);
    counting = nullptr;
  }
  int64_t total() const { return total_; }
  int64_t largest() const { return largest_; }

 private:
  void add(const at::RecordFunction& function) {
    for (const c10::IValue& value : function.outputs()) {
      if (!value.isTensor() || !value.toTensor().is_meta()) continue;
      const c10::Storage& storage = value.toTensor().storage();
      if (!seen_.emplace(storage.unsafeGetStorageImpl(), storage).second) continue;
      const auto bytes = static_cast<int64_t>(storage.nbytes());
      total_ += bytes;
      largest_ = std::max(largest_, bytes);
    }
  }

  static thread_local ResultBytes* counting;
  int64_t total_ = 0, largest_ = 0;
  /// Results so far. Storages are kept, so that no address is used twice.
  std::map<const void*, c10::Storage> seen_;
};
thread_local ResultBytes* ResultBytes::counting = nullptr;

}  // namespace

VisionModel::VisionModel(VisionConfig config) : config_(std::move(config)) {}

void VisionModel::check_images(const at::Tensor& images) const {
  const at::Tensor weight = parameters().front();
  user_check(images.dim() == 4 && images.size(1) == config_.channels &&
                 images.size(2) == config_.height && images.size(3) == config_.width,
             "{}: images must be [batch, {}, {}, {}], but are [{}]", config_.preset,
             config_.channels, config_.height, config_.width, fmt::join(images.sizes(), ", "));
  user_check(images.scalar_type() == weight.scalar_type() && images.device() == weight.device(),
             "{}: images are {} on {}, but the parameters {} on {}", config_.preset,
             c10::toString(images.scalar_type()), images.device().str(),
             c10::toString(weight.scalar_type()), weight.device().str());
}

LossSum VisionModel::loss(const at::Tensor& images, const at::Tensor& targets) {
  at::Tensor logits = forward(images);
  std::vector<int64_t> expected = logits.sizes().vec();
  expected.erase(expected.begin() + 1);
  user_check(targets.scalar_type() == at::kLong && targets.sizes() == at::IntArrayRef(expected),
             "{}: targets must be [{}] int64, but are [{}] {}", config_.preset,
             fmt::join(expected, ", "), fmt::join(targets.sizes(), ", "),
             c10::toString(targets.scalar_type()));
  const LayerScope scope("loss");
  if (logits.scalar_type() != at::kDouble) logits = logits.to(at::kFloat);
  // The default value -100 would be left out of the sum, but not of the weight.
  constexpr int64_t kIgnored = std::numeric_limits<int64_t>::min();
  return {at::cross_entropy_loss(logits, targets, /*weight=*/{}, at::Reduction::Sum, kIgnored),
          targets.numel()};
}

VisionSize vision_size(const VisionConfig& config) {
  const at::NoGradGuard no_grad;
  const auto model = make_vision_model(config, c10::kMeta);
  VisionSize out;
  for (const at::Tensor& parameter : model->parameters()) out.parameters += parameter.numel();
  const VisionConfig& c = model->config();
  constexpr int64_t kImages = 2;  // a batch norm needs two values per channel
  meta_products() = 0;
  const ResultBytes results([&] {
    model->forward(at::empty({kImages, c.channels, c.height, c.width},
                             at::TensorOptions().device(c10::kMeta)));
  });
  out.flops = 6 * meta_products() / kImages;
  out.activation_bytes = results.total() / kImages;
  out.largest_bytes = results.largest() / kImages;
  return out;
}

std::shared_ptr<VisionModel> make_vision_model(const VisionConfig& config, c10::Device device) {
  VisionConfig c = config;
  if (c.classes == 0) c.classes = c.preset == "unet" ? 2 : 1000;
  user_check(c.classes > 0 && c.channels > 0 && c.base_width > 0 && c.height > 0 && c.width > 0,
             "{}: {} classes, images of {} x {} x {} and a base width of {} must all be positive",
             c.preset, c.classes, c.channels, c.height, c.width, c.base_width);
  if (c.preset == "vgg16" || c.preset == "vgg19") return make_vgg(c, device);
  if (c.preset == "resnet50") return make_resnet50(c, device);
  if (c.preset == "unet") return make_unet(c, device);
  throw UserError(fmt::format("there is no vision model `{}`", c.preset),
                  "use vgg16, vgg19, resnet50 or unet");
}

void initialize(VisionModel& model, uint64_t seed) {
  constexpr double kLinearStd = 0.01;
  const at::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    const std::string& name = item.key();
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 1) {  // a bias, or the scale of a batch norm
      parameter.fill_(name.ends_with(".weight") ? 1 : 0);
      continue;
    }
    const double std = parameter.dim() == 2
                           ? kLinearStd
                           : std::sqrt(2.0 / static_cast<double>(fan(model, name, parameter)));
    parameter.copy_(normal_values(parameter.sizes(), std, mix_seed(seed, name_key(name))));
  }
  for (auto& item : model.named_buffers())
    item.value().fill_(item.key().ends_with("running_var") ? 1 : 0);
}

}  // namespace dovetail::models
