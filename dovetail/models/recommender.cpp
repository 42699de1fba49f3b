#include "dovetail/models/recommender.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <cmath>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/models/normal_values.h"
#include "dovetail/ops/functions.h"

namespace dovetail {
namespace {

std::shared_ptr<Linear> layer(int64_t in, int64_t out, const std::string& name, c10::Device device) {
  return make_linear({.in = in, .out = out, .bias = true, .role = LinearRole::kTower, .name = name, .device = device});
}

/// Not quantized, like a GPT's head.
std::shared_ptr<Linear> output(int64_t in, const std::string& name, c10::Device device) {
  return make_linear({.in = in, .out = 1, .bias = true, .role = LinearRole::kHead, .name = name, .device = device});
}

int64_t pairs(int64_t vectors) { return vectors * (vectors - 1) / 2; }

}  // namespace

void RecommenderConfig::describe(Section& s) {
  s.value("model", model,
          "wide_deep (Cheng et al. 2016), deepfm (Guo et al. 2017), dlrm (Naumov et al. 2019) or dcnv2 (Wang et al. "
          "2021); empty: this run trains no recommender")
      .choices({"", "wide_deep", "deepfm", "dlrm", "dcnv2"});
  s.value("dim", dim, "Elements of an embedding").range(1, 65536);
  s.value("bottom", bottom, "dlrm: hidden widths of the dense features' tower, whose last layer has dim").range(1, 1e6);
  s.value("deep", deep, "Hidden widths of the deep part; of dlrm's top").range(1, 1e6);
  s.value("cross_layers", cross_layers, "dcnv2: cross layers").range(1, 100);
  s.value("cross_rank", cross_rank, "dcnv2: rank of a cross layer's matrix; 0: a full one").range(0, 1e6);
  s.value(
       "grain", grain,
       "Samples that the dense part takes at a time: its sums have the same bits for every train.micro_batch that is "
       "a multiple of it")
      .unit("samples")
      .range(1, 1e9);
  s.value("cross", cross, "dcnv2: the deep part beside the cross layers (parallel) or on top of them (stacked)")
      .choices({"parallel", "stacked"});
}

bool has_wide_part(const RecommenderConfig& config) { return config.model == "wide_deep" || config.model == "deepfm"; }

void check(const RecommenderConfig& config, const RecommenderInputs& inputs) {
  const RecommenderConfig none;
  const auto only = [&](const char* key, const char* model, bool given) {
    user_check(!given || config.model == model, "recommender.{} is {}'s, but recommender.model = \"{}\"; leave it out",
               key, model, config.model);
  };
  only("bottom", "dlrm", config.bottom != none.bottom);
  only("cross_layers", "dcnv2", config.cross_layers != none.cross_layers);
  only("cross_rank", "dcnv2", config.cross_rank != none.cross_rank);
  only("cross", "dcnv2", config.cross != none.cross);
  user_check(inputs.sparse > 0, "recommender.model = \"{}\" needs a sparse feature, but [rows] names none",
             config.model);
  user_check(config.model != "dlrm" || inputs.dense > 0,
             "recommender.model = \"dlrm\" needs a dense feature, but [rows] names none; use another model");
}

Tower::Tower(int64_t in, const std::vector<int64_t>& widths, const std::string& name, c10::Device device) : out_(in) {
  for (const int64_t width : widths) {
    const auto number = std::to_string(layers_.size());
    layers_.push_back(register_module(number, layer(out_, width, name + "." + number, device)));
    out_ = width;
  }
}

at::Tensor Tower::forward(at::Tensor x) {
  for (const auto& linear : layers_) x = at::relu(linear->forward(x));
  return x;
}

Recommender::Recommender(const RecommenderConfig& config, const RecommenderInputs& inputs, c10::Device device)
    : config_(config), inputs_(inputs) {
  check(config, inputs);
  const int64_t embedded = inputs.sparse * config.dim, all = inputs.dense + embedded;
  int64_t found = 0;  // columns that the head reads
  if (config.model == "dlrm") {
    std::vector<int64_t> widths = config.bottom;
    widths.push_back(config.dim);
    bottom_ = register_module("bottom", std::make_shared<Tower>(inputs.dense, widths, "bottom", device));
    deep_ = std::make_shared<Tower>(config.dim + pairs(inputs.sparse + 1), config.deep, "deep", device);
    found = deep_->out();
  } else {
    deep_ = std::make_shared<Tower>(all, config.deep, "deep", device);
    found = deep_->out();
    if (config.model == "dcnv2") {
      for (int64_t i = 0; i < config.cross_layers; ++i) {
        const int64_t in = config.cross_rank > 0 ? config.cross_rank : all;
        if (config.cross_rank > 0) {
          const auto name = fmt::format("cross_down{}", i);
          cross_down_.push_back(register_module(
              name, make_linear({.in = all, .out = in, .role = LinearRole::kTower, .name = name, .device = device})));
        }
        const auto name = fmt::format("cross{}", i);
        cross_.push_back(register_module(name, layer(in, all, name, device)));
      }
      if (config.cross == "parallel") found += all;
    }
    if (config.model == "wide_deep" && inputs.dense > 0)
      wide_ = register_module("wide", output(inputs.dense, "wide", device));
  }
  register_module("deep", deep_);
  head_ = register_module("head", output(found, "head", device));
}

/// embeddings (B, F, dim): the inner products of each with those before it, (B, F (F - 1) / 2).
at::Tensor Recommender::products_of_pairs(const at::Tensor& embeddings) const {
  const int64_t count = embeddings.size(1);
  const at::Tensor products = at::bmm(embeddings, embeddings.transpose(1, 2));
  const at::Tensor place = at::tril_indices(count, count, -1, at::TensorOptions(at::kLong).device(products.device()));
  return products.flatten(1).index_select(1, place[0] * count + place[1]);
}

at::Tensor Recommender::cross(const at::Tensor& x) {
  at::Tensor y = x;
  for (size_t i = 0; i < cross_.size(); ++i) {
    const at::Tensor in = cross_down_.empty() ? y : cross_down_[i]->forward(y);
    y = x * cross_[i]->forward(in) + y;
  }
  return y;
}

at::Tensor Recommender::forward(const at::Tensor& dense, const at::Tensor& embedded) {
  const int64_t samples = embedded.size(0), columns = inputs_.sparse * config_.dim;
  const at::Tensor features = embedded.narrow(1, 0, columns),
                   vectors = features.view({samples, inputs_.sparse, config_.dim});
  if (config_.model == "dlrm") {
    const at::Tensor bottom = bottom_->forward(dense);
    const at::Tensor products = products_of_pairs(at::cat({bottom.unsqueeze(1), vectors}, 1));
    return head_->forward(deep_->forward(at::cat({bottom, products}, 1))).squeeze(1);
  }
  const at::Tensor all = at::cat({dense, features}, 1);
  if (config_.model == "dcnv2") {
    const at::Tensor crossed = cross(all);
    if (config_.cross == "stacked") return head_->forward(deep_->forward(crossed)).squeeze(1);
    return head_->forward(at::cat({crossed, deep_->forward(all)}, 1)).squeeze(1);
  }
  at::Tensor logit =
      head_->forward(deep_->forward(all)).squeeze(1) + embedded.narrow(1, columns, inputs_.sparse).sum(1);
  if (wide_) logit = logit + wide_->forward(dense).squeeze(1);
  // All pairs at once: half of (the sum's square less the squares' sum).
  if (config_.model == "deepfm") logit = logit + 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1);
  return logit;
}

void initialize(Recommender& model, uint64_t seed) {
  const torch::NoGradGuard no_grad;
  for (auto& item : model.named_parameters()) {
    at::Tensor& parameter = item.value();
    if (parameter.dim() == 1 || item.key().starts_with("wide.")) {
      parameter.zero_();
      continue;
    }
    const double std = std::sqrt(2.0 / static_cast<double>(parameter.size(0) + parameter.size(1)));
    parameter.copy_(normal_values(parameter.sizes(), std, mix_seed(seed, name_key(item.key()))));
  }
}

double flops_per_sample(const Recommender& model) {
  double products = 0;
  for (const auto& parameter : model.parameters())
    if (parameter.dim() == 2) products += static_cast<double>(parameter.numel());
  const RecommenderConfig& config = model.config();
  const int64_t vectors = model.inputs().sparse + (config.model == "dlrm" ? 1 : 0);
  if (config.model == "dlrm") products += static_cast<double>(vectors * vectors * config.dim);
  return 6 * products;
}

}  // namespace dovetail
