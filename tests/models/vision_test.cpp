#include "dovetail/models/vision.h"

#include <ATen/record_function.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "dovetail/base/layer_scope.h"
#include "tests/ops/testing.h"

namespace dovetail::models::vision_test {
namespace {

class Vision : public ::testing::Test {
  testing::Threads one_{1};  // images are small, and parallel regions dear where cores are busy
};

constexpr const char* kPresets[] = {"vgg16", "vgg19", "resnet50", "unet"};

/// Narrow, of images as small as the preset takes.
VisionConfig small_config(const std::string& preset) {
  return {.preset = preset, .classes = 5, .height = 48, .width = 32, .base_width = 2};
}

std::shared_ptr<VisionModel> small_model(const VisionConfig& config,
                                         at::ScalarType dtype = at::kFloat) {
  auto model = make_vision_model(config);
  initialize(*model, 3);
  model->to(dtype);
  return model;
}

at::Tensor images_of(const VisionConfig& c, int64_t batch, at::ScalarType dtype = at::kFloat) {
  return testing::normal({batch, c.channels, c.height, c.width}, 5, dtype);
}

at::Tensor targets_of(const VisionConfig& c, int64_t batch) {
  std::vector<int64_t> sizes = {batch};
  if (c.preset == "unet") sizes.insert(sizes.end(), {c.height, c.width});
  return at::randint(c.classes, sizes, at::detail::createCPUGenerator(6),
                     at::TensorOptions(at::kLong));
}

int64_t count_of(const VisionConfig& config) {
  int64_t count = 0;
  for (const auto& parameter : make_vision_model(config, c10::kMeta)->parameters())
    count += parameter.numel();
  return count;
}

int64_t convolution_parameters(int64_t kernel, int64_t in, int64_t out) {
  return kernel * kernel * in * out + out;
}

TEST_F(Vision, HasThePublishedNumberOfParameters) {
  EXPECT_EQ(count_of({.preset = "vgg16"}), 138'357'544);
  EXPECT_EQ(count_of({.preset = "vgg19"}), 143'667'240);
  EXPECT_EQ(count_of({.preset = "resnet50"}), 25'557'032);
  int64_t unet = convolution_parameters(1, 64, 2), in = 3;
  for (const int64_t width : {64, 128, 256, 512, 1024}) {
    unet += convolution_parameters(3, in, width) + convolution_parameters(3, width, width);
    in = width;
  }
  for (const int64_t width : {512, 256, 128, 64})
    unet += convolution_parameters(2, 2 * width, width) +
            convolution_parameters(3, 2 * width, width) + convolution_parameters(3, width, width);
  EXPECT_EQ(unet, 31'031'810);
  EXPECT_EQ(count_of({.preset = "unet"}), unet);
}

std::vector<std::string> state_names(const std::string& preset) {
  const auto model = make_vision_model({.preset = preset}, c10::kMeta);
  std::vector<std::string> names = model->named_parameters().keys();
  for (const auto& name : model->named_buffers().keys()) names.push_back(name);
  std::ranges::sort(names);
  return names;
}

std::vector<std::string> sorted(std::vector<std::string> names) {
  std::ranges::sort(names);
  return names;
}

TEST_F(Vision, NamesTheStateAsTorchvision) {
  const std::map<std::string, std::vector<int>> features = {
      {"vgg16", {0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28}},
      {"vgg19", {0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34}}};
  for (const auto& [preset, numbers] : features) {
    std::vector<std::string> names;
    for (const char* kind : {"weight", "bias"}) {
      for (const int number : numbers) names.push_back(fmt::format("features.{}.{}", number, kind));
      for (const int number : {0, 3, 6})
        names.push_back(fmt::format("classifier.{}.{}", number, kind));
    }
    EXPECT_EQ(state_names(preset), sorted(names));
  }
  std::vector<std::string> names = {"fc.weight", "fc.bias"};
  const auto pair = [&](const std::string& convolution, const std::string& norm) {
    names.push_back(convolution + ".weight");
    for (const char* kind :
         {"weight", "bias", "running_mean", "running_var", "num_batches_tracked"})
      names.push_back(fmt::format("{}.{}", norm, kind));
  };
  pair("conv1", "bn1");
  constexpr std::array kDepth = {3, 4, 6, 3};
  for (size_t stage = 0; stage < kDepth.size(); ++stage) {
    for (int block = 0; block < kDepth[stage]; ++block) {
      const auto prefix = fmt::format("layer{}.{}.", stage + 1, block);
      for (const int i : {1, 2, 3})
        pair(fmt::format("{}conv{}", prefix, i), fmt::format("{}bn{}", prefix, i));
      if (block == 0) pair(prefix + "downsample.0", prefix + "downsample.1");
    }
  }
  EXPECT_EQ(state_names("resnet50"), sorted(names));
}

TEST_F(Vision, GivesLogitsAtEverySizeItTakes) {
  struct Case {
    std::string preset;
    int64_t height, width;
  };
  for (const auto& [preset, height, width] : {Case{"vgg16", 227, 227},
                                              {"vgg19", 32, 33},
                                              {"resnet50", 224, 224},
                                              {"resnet50", 37, 1},
                                              {"unet", 16, 48}}) {
    VisionConfig config = small_config(preset);
    config.height = height;
    config.width = width;
    const auto model = small_model(config);
    model->eval();
    for (const int64_t batch : {0, 1, 3}) {
      SCOPED_TRACE(fmt::format("{} images of {} x {} through {}", batch, height, width, preset));
      std::vector<int64_t> expected = {batch, config.classes};
      if (preset == "unet") expected.insert(expected.end(), {height, width});
      EXPECT_EQ(model->forward(images_of(config, batch)).sizes(), at::IntArrayRef(expected));
    }
  }
}

TEST_F(Vision, GivesLogitsOfThePublishedClassesAtFullWidth) {
  const auto model = small_model({.preset = "resnet50"});
  model->eval();
  const at::NoGradGuard no_grad;
  EXPECT_EQ(model->forward(images_of(model->config(), 1)).sizes(), at::IntArrayRef({1, 1000}));
  EXPECT_EQ(make_vision_model({.preset = "vgg19"}, c10::kMeta)->config().classes, 1000);
  EXPECT_EQ(make_vision_model({.preset = "unet"}, c10::kMeta)->config().classes, 2);
}

TEST_F(Vision, TrainsOnNoImages) {
  for (const std::string preset : kPresets) {
    const VisionConfig config = small_config(preset);
    const auto model = small_model(config);
    const LossSum loss = model->loss(images_of(config, 0), targets_of(config, 0));
    loss.sum.backward();
    EXPECT_EQ(loss.weight, 0);
    EXPECT_EQ(loss.sum.item<double>(), 0) << preset;
  }
}

TEST_F(Vision, LossIsASum) {
  for (const auto& [dtype, tolerance] : {std::pair{at::kFloat, 1e-5}, {at::kDouble, 1e-12}}) {
    for (const std::string preset : kPresets) {
      const VisionConfig config = small_config(preset);
      const auto model = small_model(config, dtype);
      model->eval();
      const at::Tensor images = images_of(config, 5, dtype), targets = targets_of(config, 5);
      const auto of = [&](int64_t begin, int64_t count) {
        return model->loss(images.narrow(0, begin, count), targets.narrow(0, begin, count));
      };
      const LossSum whole = of(0, 5), first = of(0, 2), rest = of(2, 3);
      EXPECT_EQ(first.weight + rest.weight, whole.weight);
      EXPECT_EQ(whole.weight, preset == "unet" ? 5 * config.height * config.width : 5);
      const double expected = whole.sum.item<double>();
      EXPECT_EQ(whole.sum.scalar_type(), dtype);
      EXPECT_NEAR(first.sum.item<double>() + rest.sum.item<double>(), expected,
                  tolerance * expected)
          << preset;
      EXPECT_GT(expected, static_cast<double>(whole.weight))
          << preset;  // -log(1 / 5) = 1.6 each, not their mean
    }
  }
}

/// Operators that ran on this thread: all names, and the layer that reads each parameter and
/// buffer.
struct Seen {
  std::map<const void*, std::string> owner;  ///< name of the state in each storage
  std::map<std::string, std::set<std::string>> layers;
  std::set<std::string> operators;
};
Seen* seen = nullptr;

std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& function) {
  seen->operators.insert(function.name());
  for (const c10::IValue& input : function.inputs()) {
    if (!input.isTensor() || !input.toTensor().defined()) continue;
    const auto found = seen->owner.find(input.toTensor().storage().data());
    if (found != seen->owner.end()) seen->layers[found->second].insert(current_layer());
  }
  return nullptr;
}

TEST_F(Vision, RunsEachLayerInTheScopeOfItsNameAndNeverWaits) {
  for (const std::string preset : kPresets) {
    const VisionConfig config = small_config(preset);
    const auto model = small_model(config);
    Seen all;
    for (const auto& item : model->named_parameters())
      all.owner[item.value().storage().data()] = item.key();
    for (const auto& item : model->named_buffers())
      all.owner[item.value().storage().data()] = item.key();
    seen = &all;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(see).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    const LossSum loss = model->loss(images_of(config, 2), targets_of(config, 2));
    const auto in_forward = all.layers;
    EXPECT_EQ(current_layer(), "");
    loss.sum.backward();
    at::removeCallback(handle);
    for (const auto& [storage, name] : all.owner) {
      ASSERT_TRUE(in_forward.contains(name)) << preset << ": no ATen operator reads " << name;
      EXPECT_EQ(in_forward.at(name), std::set<std::string>{name.substr(0, name.rfind('.'))})
          << preset;
    }
    for (const char* waits :
         {"aten::item", "aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})
      EXPECT_FALSE(all.operators.contains(waits)) << preset << " calls " << waits;
  }
}

TEST_F(Vision, IsTheSameInPlace) {
  for (const std::string preset : kPresets) {
    const auto gradients = [&](bool in_place) {
      VisionConfig config = small_config(preset);
      config.in_place = in_place;
      const auto model = small_model(config);
      if (preset.starts_with("vgg")) model->eval();  // without dropout
      const LossSum loss = model->loss(images_of(config, 3), targets_of(config, 3));
      loss.sum.backward();
      std::vector<at::Tensor> found = {loss.sum.detach()};
      for (const auto& parameter : model->parameters()) found.push_back(parameter.grad());
      return found;
    };
    const auto with = gradients(true), without = gradients(false);
    for (size_t i = 0; i < with.size(); ++i)
      EXPECT_TRUE(at::equal(with[i], without[i])) << preset << " " << i;
  }
}

TEST_F(Vision, DropsHalfOfTheHiddenUnitsInTrainingAlone) {
  const VisionConfig config = small_config("vgg16");
  const auto model = small_model(config);
  const at::Tensor images = images_of(config, 2);
  EXPECT_FALSE(at::equal(model->forward(images), model->forward(images)));
  model->eval();
  EXPECT_TRUE(at::equal(model->forward(images), model->forward(images)));
}

TEST_F(Vision, InitialValuesFollowSeedAndName) {
  struct Case {
    const char *preset, *name;
    double std;
  };
  for (const auto& [preset, name, std] :
       {Case{"vgg16", "features.7.weight", std::sqrt(2.0 / (9 * 32))},
        {"vgg16", "classifier.3.weight", 0.01},
        {"resnet50", "conv1.weight", std::sqrt(2.0 / (49 * 16))},
        {"resnet50", "layer2.0.downsample.0.weight", std::sqrt(2.0 / 128)},
        {"unet", "up2.upsample.weight", std::sqrt(2.0 / 64)},
        {"unet", "up2.conv1.weight", std::sqrt(2.0 / (9 * 64))}}) {
    VisionConfig config = small_config(preset);
    config.base_width = 16;
    const auto model = make_vision_model(config), again = make_vision_model(config),
               other = make_vision_model(config);
    for (auto& buffer : model->buffers()) buffer.fill_(7);
    initialize(*model, 3);
    initialize(*again, 3);
    initialize(*other, 4);
    const at::Tensor values = model->named_parameters()[name];
    EXPECT_TRUE(at::equal(values, again->named_parameters()[name])) << preset;
    EXPECT_FALSE(at::equal(values, other->named_parameters()[name])) << preset;
    const double allowed =
        5 * std / std::sqrt(2 * static_cast<double>(values.numel()));  // five standard errors
    EXPECT_NEAR(values.std().item<double>(), std, allowed) << preset << " " << name;
    for (const auto& item : model->named_parameters())
      if (item.value().dim() == 1) {
        EXPECT_TRUE(item.value().eq(item.key().ends_with("weight") ? 1 : 0).all().item<bool>())
            << item.key();
      }
    for (const auto& item : model->named_buffers())
      EXPECT_TRUE(item.value().eq(item.key().ends_with("running_var") ? 1 : 0).all().item<bool>())
          << item.key();
  }
}

TEST_F(Vision, RefusesWhatDoesNotFit) {
  const auto made = [](VisionConfig config) {
    return testing::user_error([&] { make_vision_model(config); });
  };
  EXPECT_THAT(made({.preset = "unet", .height = 40, .width = 64}), ::testing::HasSubstr("40 x 64"));
  EXPECT_THAT(made({.preset = "unet", .height = 32, .width = 31}),
              ::testing::HasSubstr("multiples of 16"));
  EXPECT_THAT(made({.preset = "vgg19", .height = 224, .width = 31}),
              ::testing::HasSubstr("224 x 31"));
  EXPECT_THAT(made({.preset = "vgg11"}), ::testing::HasSubstr("`vgg11`"));
  EXPECT_THAT(made({.classes = -1}), ::testing::HasSubstr("-1 classes"));

  const VisionConfig config = small_config("resnet50");
  const auto model = small_model(config);
  const auto lost = [&](const at::Tensor& images, const at::Tensor& targets) {
    return testing::user_error([&] { model->loss(images, targets); });
  };
  const at::Tensor images = images_of(config, 2), targets = targets_of(config, 2);
  EXPECT_THAT(lost(images.narrow(2, 0, 47), targets), ::testing::HasSubstr("are [2, 3, 47, 32]"));
  EXPECT_THAT(lost(images.to(at::kDouble), targets), ::testing::HasSubstr("images are Double"));
  EXPECT_THAT(lost(images, targets_of(config, 3)), ::testing::HasSubstr("are [3] Long"));
  EXPECT_THAT(lost(images, targets.to(at::kInt)), ::testing::HasSubstr("are [2] Int"));
  EXPECT_THROW(model->loss(images, at::full({2}, -100, at::kLong)),
               c10::Error);  // no target stands for padding

  VisionConfig tiny = config;
  tiny.height = tiny.width = 32;  // 1 x 1 in the last stage
  EXPECT_THAT(testing::user_error([&] { small_model(tiny)->forward(images_of(tiny, 1)); }),
              ::testing::HasSubstr("layer4.0.bn2"));
}

}  // namespace
}  // namespace dovetail::models::vision_test
