// Compares the vision models with transformers' ResNet, and with VGG and U-Net in torch.nn
// (vision_oracle.py). These references share no code with the project.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/models/vision.h"
#include "oracle.h"
#include "tests/base/temporary_folder.h"
#include "tests/ops/testing.h"

namespace dovetail::models::vision_oracle_test {
namespace {

constexpr int64_t kBatch = 3;

struct Case {
  std::string name;
  VisionConfig config;
  bool training = false;
};

std::vector<Case> cases() {
  const VisionConfig vgg16{
      .preset = "vgg16", .classes = 7, .channels = 2, .height = 45, .width = 64, .base_width = 2};
  VisionConfig vgg19 = vgg16, resnet = vgg16, unet = vgg16;
  vgg19.preset = "vgg19";
  resnet.preset = "resnet50";
  resnet.height = 67;
  resnet.width = 51;
  resnet.base_width = 3;
  unet.preset = "unet";
  unet.height = 48;
  return {{"vgg16", vgg16},
          {"vgg19", vgg19},
          {"resnet50", resnet},
          {"resnet50_training", resnet, /*training=*/true},
          {"unet", unet}};
}

/// Random parameters and running statistics, biases and scales too.
std::shared_ptr<VisionModel> model_of(const Case& c, at::ScalarType dtype) {
  auto model = make_vision_model(c.config);
  const at::NoGradGuard no_grad;
  for (auto& item : model->named_parameters()) {
    at::Tensor& parameter = item.value();
    const bool scale = parameter.dim() == 1 && item.key().ends_with(".weight");
    const double inputs =
        static_cast<double>(parameter.numel()) / static_cast<double>(parameter.size(0));
    const double std = parameter.dim() == 1 ? 0.3 : std::sqrt(2 / inputs);
    parameter.copy_(testing::normal(parameter.sizes(), name_key(item.key())) * std +
                    (scale ? 1 : 0));
  }
  for (auto& item : model->named_buffers())
    if (item.value().dim() == 1)
      item.value().add_(testing::normal(item.value().sizes(), name_key(item.key())).abs(), 0.5);
  model->train(c.training);
  model->to(dtype);
  return model;
}

at::Tensor images_of(const Case& c) {
  return testing::normal({kBatch, c.config.channels, c.config.height, c.config.width}, 5);
}

at::Tensor targets_of(const Case& c) {
  std::vector<int64_t> sizes = {kBatch};
  if (c.config.preset == "unet") sizes.insert(sizes.end(), {c.config.height, c.config.width});
  return at::randint(c.config.classes, sizes, at::detail::createCPUGenerator(6),
                     at::TensorOptions(at::kLong));
}

class VisionOracle : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new test::TemporaryFolder;
    for (const Case& c : cases()) write(c);
    status_ = testing::run_oracle("vision_oracle.py", folder_->path().string());
  }
  static void TearDownTestSuite() { delete folder_; }

  static void write(const Case& c) {
    const nlohmann::json spec = {{"preset", c.config.preset},
                                 {"classes", c.config.classes},
                                 {"channels", c.config.channels},
                                 {"base_width", c.config.base_width},
                                 {"training", c.training}};
    write_file_atomically(path(c, ".json"), spec.dump());
    std::map<std::string, at::Tensor> tensors = {{"images", images_of(c).to(at::kDouble)},
                                                 {"targets", targets_of(c)}};
    const auto model = model_of(c, at::kDouble);
    for (const auto& item : model->named_parameters())
      tensors["model." + item.key()] = item.value().detach();
    for (const auto& item : model->named_buffers()) tensors["model." + item.key()] = item.value();
    io::write_safetensors(path(c, ".safetensors"), tensors);
  }

  void SetUp() override {
    if (status_ == -1) GTEST_SKIP() << "DOVETAIL_PYTHON is not set";
    ASSERT_EQ(status_, 0) << "vision_oracle.py failed";
  }

  static std::filesystem::path path(const Case& c, const std::string& suffix) {
    return folder_->path() / (c.name + suffix);
  }

  /// Largest error of logits, loss, buffers and every gradient, each relative to the largest value
  /// expected there.
  static void expect_close(at::ScalarType dtype, double tolerance) {
    for (const Case& c : cases()) {
      // There a ReLU whose sign turns by rounding moves gradients by a tenth, in the reference too.
      if (c.training && dtype == at::kFloat) continue;
      const io::SafetensorsFile expected(path(c, ".expected.safetensors"));
      size_t compared = 0;
      const auto compare = [&](const std::string& name, const at::Tensor& ours) {
        const at::Tensor theirs = expected.read(name);
        ASSERT_EQ(ours.sizes(), theirs.sizes()) << c.name << " " << name;
        const double largest = theirs.abs().max().item<double>();
        EXPECT_LE(testing::largest_difference(ours, theirs), tolerance * largest)
            << c.name << " " << name;
        EXPECT_TRUE(largest > 1e-4 || name.ends_with("num_batches_tracked"))
            << c.name << " " << name << " is idle";
        ++compared;
      };
      const auto model = model_of(c, dtype);
      const at::Tensor images = images_of(c).to(dtype).requires_grad_();
      const LossSum loss = model->loss(images, targets_of(c));
      EXPECT_EQ(loss.weight, targets_of(c).numel());
      loss.sum.backward();
      compare("loss", loss.sum.detach());
      compare("grad.images", images.grad());
      for (const auto& item : model->named_parameters())
        compare("grad." + item.key(), item.value().grad());
      for (const auto& item : model->named_buffers()) compare("buffer." + item.key(), item.value());
      compare("logits", model->forward(images).detach());
      EXPECT_EQ(compared, expected.names().size()) << c.name;
    }
  }

  static test::TemporaryFolder* folder_;
  static int status_;

 private:
  testing::Threads one_{1};  // images are small, and parallel regions dear where cores are busy
};
test::TemporaryFolder* VisionOracle::folder_ = nullptr;
int VisionOracle::status_ = 0;

TEST_F(VisionOracle, AgreesInFloat64) { expect_close(at::kDouble, 1e-9); }
TEST_F(VisionOracle, AgreesInFloat32) { expect_close(at::kFloat, 1e-4); }

}  // namespace
}  // namespace dovetail::models::vision_oracle_test
