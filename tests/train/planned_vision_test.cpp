#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/base/proc_files.h"
#include "dovetail/models/vision.h"
#include "dovetail/plan/step/planned_step.h"

/// Networks with batch norm, whose operations change running statistics, under plans that only
/// recompute.
namespace dovetail::train::planned_vision_test {
namespace {

constexpr int kSteps = 20;

/// Two convolutions, each with batch norm and ReLU.
torch::nn::Sequential double_convolution(int64_t in, int64_t out) {
  torch::nn::Sequential layers;
  for (int i = 0; i < 2; ++i) {
    layers->push_back(torch::nn::Conv2d(
        torch::nn::Conv2dOptions(i == 0 ? in : out, out, 3).padding(1).bias(false)));
    layers->push_back(torch::nn::BatchNorm2d(out));
    layers->push_back(torch::nn::ReLU(torch::nn::ReLUOptions(/*inplace=*/true)));
  }
  return layers;
}

struct UNet : torch::nn::Module {
  UNet() {
    int64_t in = 3;
    for (size_t level = 0; level < 3; ++level) {
      const int64_t width = 16 << level;
      down.push_back(
          register_module("down" + std::to_string(level), double_convolution(in, width)));
      up.push_back(
          register_module("up" + std::to_string(level), double_convolution(2 * width, width)));
      rise.push_back(
          register_module("rise" + std::to_string(level),
                          torch::nn::ConvTranspose2d(
                              torch::nn::ConvTranspose2dOptions(2 * width, width, 2).stride(2))));
      in = width;
    }
    bottom = register_module("bottom", double_convolution(in, 2 * in));
    head = register_module("head", torch::nn::Conv2d(16, 2, 1));
  }
  torch::Tensor forward(torch::Tensor x) {
    std::vector<torch::Tensor> skips;
    for (auto& level : down) {
      skips.push_back(level->forward(x));
      x = torch::max_pool2d(skips.back(), 2);
    }
    x = bottom->forward(x);
    for (size_t level = down.size(); level-- > 0;)
      x = up[level]->forward(torch::cat({skips[level], rise[level](x)}, 1));
    return head(x);
  }
  std::vector<torch::nn::Sequential> down, up;
  std::vector<torch::nn::ConvTranspose2d> rise;
  torch::nn::Sequential bottom{nullptr};
  torch::nn::Conv2d head{nullptr};
};

struct Trained {
  std::vector<std::pair<std::string, torch::Tensor>> values;
  std::vector<double> losses;
  int64_t again_bytes = 0;
  int64_t scratch_bytes = 0;   // step_bytes without parameters and buffers
  int64_t released_bytes = 0;  // after the last step
};

int64_t own_bytes_of_process() {
  return static_cast<int64_t>(kilobytes_of(read_file("/proc/self/status"), "RssAnon"));
}

struct Case {
  const char* name;
  int64_t batch;
  const char* budget;
  bool replay;
};

class PlannedVision : public ::testing::TestWithParam<Case> {
 protected:
  static Trained train(const std::optional<plan::PlannedStep::Options>& options) {
    torch::manual_seed(1);
    const bool unet = std::string(GetParam().name).starts_with("unet");
    const int64_t batch = GetParam().batch;
    std::shared_ptr<models::VisionModel> resnet;
    std::shared_ptr<UNet> pixels;
    if (unet) {
      pixels = std::make_shared<UNet>();
    } else {
      resnet = models::make_vision_model(
          {.preset = "resnet50", .classes = 10, .height = 48, .width = 48, .base_width = 16});
      initialize(*resnet, 1);
    }
    torch::nn::Module& model = unet ? static_cast<torch::nn::Module&>(*pixels) : *resnet;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(0.01));
    const torch::Tensor loss_now = torch::zeros({});
    const auto work = [&](const std::vector<torch::Tensor>& inputs) {
      optimizer.zero_grad();
      const torch::Tensor loss =
          unet ? torch::nn::functional::cross_entropy(pixels->forward(inputs[0]), inputs[1])
               : resnet->loss(inputs[0], inputs[1]).sum / static_cast<double>(batch);
      loss.backward();
      optimizer.step();
      const torch::NoGradGuard no_grad;
      loss_now.copy_(loss);
    };
    plan::StepTensors tensors;
    Trained out;
    for (const auto& item : model.named_parameters())
      tensors.parameters.emplace_back(item.key(), item.value());
    for (const auto& item : model.named_buffers())
      tensors.state.emplace_back(item.key(), item.value());
    std::optional<plan::PlannedStep> planned;
    if (options) planned.emplace(work, [&tensors] { return tensors; }, *options);
    for (int i = 0; i < kSteps; ++i) {
      auto generator = torch::make_generator<at::CPUGeneratorImpl>(10 + i);
      const auto x = torch::randn({batch, 3, 48, 48}, generator);
      const auto y = unet ? torch::randint(0, 2, {batch, 48, 48}, generator)
                          : torch::randint(0, 10, {batch}, generator);
      if (planned)
        planned->run({{"x", x}, {"y", y}}, {});
      else
        work({x, y});
      out.losses.push_back(loss_now.item<double>());
      if (!planned) continue;
      const int64_t before = own_bytes_of_process();  // as before an evaluation
      planned->release_scratch();
      out.released_bytes = before - own_bytes_of_process();
    }
    if (planned) {
      out.again_bytes = planned->report()->again_bytes;
      out.scratch_bytes = planned->report()->step_bytes;
      for (const auto* list : {&tensors.parameters, &tensors.state})
        for (const auto& [name, tensor] : *list)
          out.scratch_bytes -= static_cast<int64_t>(tensor.nbytes());
    }
    planned.reset();
    out.values = tensors.parameters;
    out.values.insert(out.values.end(), tensors.state.begin(), tensors.state.end());
    return out;
  }
};

TEST_P(PlannedVision, ParametersAndBuffersAreThoseOfEagerTrainingBitForBit) {
  const Trained eager = train({}),
                planned = train(plan::PlannedStep::Options{.budget = GetParam().budget,
                                                           .offload = false,
                                                           .compress = false,
                                                           .algorithms = false,
                                                           .solve_s = 4,
                                                           .curve_budgets = 0,
                                                           .replay = GetParam().replay});
  EXPECT_GT(planned.again_bytes, 0);
  EXPECT_GT(planned.released_bytes, planned.scratch_bytes / 2);
  EXPECT_EQ(eager.losses, planned.losses);
  for (size_t i = 0; i < eager.values.size(); ++i)
    EXPECT_TRUE(eager.values[i].second.equal(planned.values[i].second)) << eager.values[i].first;
}

INSTANTIATE_TEST_SUITE_P(Models, PlannedVision,
                         ::testing::Values(Case{"resnet50", 16, "0.95x", false},
                                           Case{"unet", 4, "0.8x", false},
                                           Case{"unet_replayed", 4, "0.8x", true}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dovetail::train::planned_vision_test
