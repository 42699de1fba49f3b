#include "dovetail/moe/layer.h"

#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/moe/device_experts.h"
#include "dovetail/moe/device_float8.h"
#include "dovetail/moe/experts.h"
#include "dovetail/mx/linear_group.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

/// Container of experts, named by their global index. A rank may have only some of all experts.
class ExpertList : public torch::nn::Module {
 public:
  void add(int64_t expert, const std::shared_ptr<mx::FeedForward>& module) {
    register_module(std::to_string(expert), module);
  }
};

/// Returns the recipe that all Linears of the experts have. Returns nullopt if they have several,
/// or if one has none.
std::optional<mx::LinearRecipe> common_recipe(
    const std::vector<std::shared_ptr<mx::FeedForward>>& experts) {
  std::optional<mx::LinearRecipe> common;
  for (const auto& expert : experts)
    for (const mx::Linear* linear : {&expert->up(), &expert->down()}) {
      if (linear->quantized() == nullptr) return std::nullopt;
      if (common && *common != linear->quantized()->recipe()) return std::nullopt;
      common = linear->quantized()->recipe();
    }
  return common;
}

}  // namespace

Layer::Layer(const Config& config, const Options& options)
    : config_(config), activation_(options.activation), ranks_(options.ranks) {
  DOVETAIL_CHECK(config.experts > 0 && config.ffn_width > 0, "{}: {} experts of width {}",
                 options.name, config.experts, config.ffn_width);
  const auto feed_forward = [&](int64_t width, const std::string& name) {
    return std::make_shared<mx::FeedForward>(
        mx::FeedForward::Options{.in = options.width,
                                 .width = width,
                                 .activation = options.activation,
                                 .bias = options.bias,
                                 .name = options.name + "." + name,
                                 .device = options.device});
  };
  router_ = register_module(
      "router", std::make_shared<Router>(config, options.width, options.name, options.device));
  const Placement placement = ranks_ ? ranks_->placement : Placement{.experts = config.experts};
  const int holder = ranks_ ? placement.holder(ranks_->group->rank()) : 0;
  layout_.shards = placement.cut;
  const auto experts = register_module("experts", std::make_shared<ExpertList>());
  for (int64_t e = placement.first(holder); e < placement.first(holder + 1); ++e) {
    experts_.push_back(
        feed_forward(config.ffn_width / placement.cut, fmt::format("experts.{}", e)));
    experts->add(e, experts_.back());
  }
  if (config.shared_experts > 0)
    shared_ =
        register_module("shared", feed_forward(config.shared_experts * config.ffn_width, "shared"));
  reset_load();
}

Layer::Output Layer::forward(const at::Tensor& x, const Pass& pass) {
  const at::Tensor rows = x.reshape({-1, x.size(-1)});
  const auto [routing, loss] = router_->forward(x, pass);
  Output out;
  out.loss = loss;
  const bool on_device = fixed_sizes_ || (!x.is_cpu() && device_rows_obstacle().empty());
  if (x.is_meta() && !on_device) {  // the meta device has no sizes to read
    out.y = at::empty_like(x);
    return out;
  }
  if (!pass.again) add_to_load(routing);
  const LocalExperts local = local_experts(rows);
  const std::optional<int64_t> capacity = padded_capacity(routing, pass);
  at::Tensor y;
  if (on_device) {
    // Without any place, an expert still has a spare one.
    const int64_t places = capacity ? std::max<int64_t>(*capacity, 1) : 0;
    const bool float8 = quantized();
    const DeviceRows to =
        device_rows(routing.expert, routing.slot, config_.experts, places, routing.kept,
                    float8 || fixed_sizes_, float8 ? kFloat8Multiple : 1);
    y = float8 ? feed_forward(rows, routing.weight, to, local.weights, *common_recipe(experts_))
               : feed_forward(rows, routing.weight, to, local.weights);
  } else if (ranks_) {
    y = parallel_feed_forward(rows, routing.weight, routing.expert, routing.slot, local, *ranks_,
                              layout_, capacity);
  } else if (capacity) {
    y = padded_feed_forward(
        rows, routing.weight,
        padded_dispatch(routing.expert, routing.slot, config_.experts, *capacity, routing.kept),
        local);
  } else {
    y = run_experts(rows, routing.weight,
                    dispatch(routing.expert, routing.slot, config_.experts, routing.kept), local);
  }
  y = y.to(x.scalar_type());
  if (shared_) y = y + shared_->forward(rows);
  out.y = y.view(x.sizes());
  return out;
}

Layer::Load Layer::load() const {
  const at::Tensor numbers = load_.cpu();
  const auto* number = numbers.const_data_ptr<int64_t>();
  return {.count = {number, number + config_.experts}, .dropped = number[config_.experts]};
}

void Layer::add_load(const Load& of_replica) {
  std::vector<int64_t> numbers = of_replica.count;
  numbers.push_back(of_replica.dropped);
  load_.add_(at::tensor(numbers, load_.options()));
}

void Layer::reset_load() {
  // In place: a CUDA graph of a step adds to this tensor.
  load_.defined() ? load_.zero_() : load_ = at::zeros({config_.experts + 1}, at::kLong);
  router_->begin_step();
}

void Layer::add_to_load(const Routing& routing) {
  operation_once("dovetail::moe_count_load", {.reads = {routing.count, routing.slot, routing.kept}},
                 [this](const Operands& inputs) {
                   const auto [count, slot, kept] = inputs.read<3>();
                   if (load_.device() != count.device()) load_ = load_.to(count.device());
                   load_.narrow(0, 0, config_.experts).add_(count);
                   at::Tensor dropped = load_.select(0, config_.experts);
                   if (!kept.defined()) {
                     dropped.add_(count.sum()).sub_(slot.ge(0).sum());
                   } else if (!kept.is_same(count)) {  // the same tensor: none is dropped
                     dropped.add_((count - kept).sum());
                   }
                   return std::vector<at::Tensor>();
                 });
}

std::optional<int64_t> Layer::padded_capacity(const Routing& routing, const Pass& pass) const {
  const RoutingSpec spec = router_->spec_of(pass);
  if (!config_.pad_to_capacity || spec.drop == Drop::kNone) return std::nullopt;
  if (!ranks_) return routing.capacity;
  if (spec.capacity_factor > 0 && pass.maximum_tokens > 0)
    return capacity(spec, pass.maximum_tokens, config_.experts, 0);
  const std::vector<int64_t> own(static_cast<size_t>(ranks_->placement.ranks), routing.capacity);
  return std::ranges::max(comm::exchange_sizes(*ranks_->group, own).receive);
}

bool Layer::quantized() const {
  return std::ranges::any_of(experts_, [](const auto& expert) {
    return expert->up().quantized() || expert->down().quantized();
  });
}

std::vector<const mx::Linear*> Layer::linears(Part part) const {
  std::vector<const mx::Linear*> found;
  for (const auto& expert : experts_)
    found.push_back(part == Part::kUp ? &expert->up() : &expert->down());
  return found;
}

std::string Layer::grouped_obstacle(at::ScalarType dtype, at::Device device) const {
  if (!ops::kernel_enabled(ops::Kernel::kExperts)) return "the kernel `experts` is switched off";
  std::string reason = mx::LinearGroup::obstacle(linears(Part::kUp), dtype, device);
  if (reason.empty()) reason = mx::LinearGroup::obstacle(linears(Part::kDown), dtype, device);
  return reason;
}

std::string Layer::recorded_obstacle(at::ScalarType dtype, at::Device device) const {
  if (device.is_cuda()) {
    if (ranks_) return "the host plans the rows of other ranks";
    if (quantized()) return "quantized experts have no recorded operations there";
    return fixed_sizes_obstacle(expert_weights());
  }
  if (!quantized())
    return dtype == at::kFloat ? ""
                               : fmt::format("experts in {} have sums whose sizes follow the load",
                                             c10::toString(dtype));
  const std::string reason = grouped_obstacle(dtype, device);
  if (!reason.empty()) return "experts run one after another: " + reason;
  for (const Part part : {Part::kUp, Part::kDown}) {
    const mx::LinearRecipe& recipe = linears(part)[0]->quantized()->recipe();
    for (const mx::Operand operand : mx::kOperands)
      if (recipe.of(operand).format && !recipe.of(operand).is_microscaling())
        return "FP8 has tensors of each expert, whose sizes follow the load";
  }
  return "";
}

ExpertWeights Layer::expert_weights() const {
  ExpertWeights weights{.activation = activation_};
  for (const auto& expert : experts_) {
    weights.up.push_back(expert->up().weight);
    weights.down.push_back(expert->down().weight);
    if (!expert->up().options().bias) continue;
    weights.up_bias.push_back(expert->up().bias);
    weights.down_bias.push_back(expert->down().bias);
  }
  return weights;
}

std::string Layer::device_rows_obstacle() const {
  if (ranks_) return "ranks share them";
  if (!quantized()) return moe::device_rows_obstacle(expert_weights());
  const auto recipe = common_recipe(experts_);
  return recipe ? float8_rows_obstacle(expert_weights(), *recipe)
                : "their Linears have different recipes";
}

std::string Layer::graph_obstacle() const {
  const std::string reason = device_rows_obstacle();
  if (!reason.empty()) return "experts read the sizes of their shares on the host: " + reason;
  return router_->host_obstacle();
}

void Layer::share_expert_storage() {
  if (!device_rows_obstacle().empty()) return;
  const ExpertWeights weights = expert_weights();
  share_storage(weights.up);
  share_storage(weights.down);
}

LocalExperts Layer::local_experts(const at::Tensor& x) const {
  LocalExperts local{.weights = expert_weights()};
  if (quantized() && grouped_obstacle(x.scalar_type(), x.device()).empty()) {
    local.grouped = [this](const at::Tensor& rows, const mx::RowGroups& groups) {
      const at::Tensor h = mx::LinearGroup(linears(Part::kUp)).forward(rows, groups);
      return mx::LinearGroup(linears(Part::kDown))
          .forward(h, groups, mx::activation_operation(activation_));
    };
  } else if (quantized()) {
    local.modules = [this](int64_t e, const at::Tensor& rows) {
      const auto& expert = experts_[static_cast<size_t>(e)];
      return run_padded(rows, [&](const at::Tensor& padded) { return expert->forward(padded); });
    };
  }
  return local;
}

Layers layers_of(const torch::nn::Module& model) {
  Layers layers;
  for (const auto& item : model.named_modules("", /*include_self=*/false))
    if (auto layer = std::dynamic_pointer_cast<Layer>(item.value()))
      layers.emplace_back(item.key(), std::move(layer));
  return layers;
}

std::string describe_products(const Layers& layers) {
  const bool float8 =
      std::ranges::any_of(layers, [](const auto& layer) { return layer.second->quantized(); });
  std::string text =
      fmt::format("the sizes of experts stay on the GPU, where {} them",
                  float8 ? "`torch._grouped_mm` and, in FP8, `torch._scaled_grouped_mm` read"
                         : "`torch._grouped_mm` reads");
  for (const auto& [name, layer] : layers) {
    const std::string reason = layer->device_rows_obstacle();
    if (reason.empty()) continue;
    text =
        fmt::format("the host reads the sizes of experts in each layer; in {}, {}", name, reason);
    break;
  }
  for (const auto& [name, layer] : layers) {
    const std::string reason = layer->router().host_obstacle();
    if (!reason.empty()) return fmt::format("{}; {}", text, reason);
  }
  return text;
}

}  // namespace dovetail::moe
