// ctest-labels: cuda
#include <gtest/gtest.h>
#include <torch/types.h>

#include "dovetail/models/generate.h"
#include "small_models.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::models::cuda_model_test {
namespace {

using testing::make_model;
using testing::random_tokens;
using testing::variants;

class CudaModel : public dovetail::testing::NeedsGpu {};

/// Float64 on both devices, so that no token is chosen by rounding.
TEST_F(CudaModel, GeneratesTheTokensOfTheCpu) {
  for (const auto& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const auto on_cpu = make_model(variant.config), on_gpu = make_model(variant.config);
    on_cpu->to(at::kDouble);
    on_gpu->to(at::kDouble);
    on_gpu->to(at::kCUDA);
    const int64_t context = variant.config.context;
    for (const double temperature : {0.0, 0.9}) {
      const GenerateOptions options = {
          .max_tokens = 2 * context, .temperature = temperature, .seed = 5};
      EXPECT_EQ(generate(*on_gpu, {1, 2, 3}, options), generate(*on_cpu, {1, 2, 3}, options));
    }
  }
}

/// Embedding, positions, blocks, head and loss; with recomputed blocks, too.
TEST_F(CudaModel, LossAndGradientsAreThoseOfTheCpu) {
  for (const auto& variant : variants()) {
    SCOPED_TRACE(variant.name);
    const at::Tensor tokens =
        random_tokens(3, variant.config.context + 1, variant.config.vocab_size);
    const auto gradients_on = [&](at::DeviceType device, bool recompute) {
      const auto model = make_model(variant.config);
      model->checkpoint_activations = recompute;
      model->to(device);
      const LossSum loss = model->loss(tokens);
      loss.sum.backward();
      std::map<std::string, at::Tensor> found = {{"loss", loss.sum.detach().cpu()}};
      for (const auto& item : model->named_parameters())
        found[item.key()] = item.value().grad().cpu();
      return found;
    };
    const auto expected = gradients_on(at::kCPU, false);
    for (const bool recompute : {false, true}) {
      for (const auto& [name, found] : gradients_on(at::kCUDA, recompute)) {
        const at::Tensor& wanted = expected.at(name);
        EXPECT_LE((found - wanted).norm().item<double>(), 1e-4 * wanted.norm().item<double>())
            << name << recompute;
      }
    }
  }
}

}  // namespace
}  // namespace dovetail::models::cuda_model_test
