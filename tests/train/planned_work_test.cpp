#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/plan/step/planned_step.h"

/// Unmodified models and optimizers of libtorch within a memory budget. Each step has its own
/// numbers.
namespace dovetail::train::planned_work_test {
namespace {

using ::testing::HasSubstr;

struct Net : torch::nn::Module {
  Net() {
    int64_t channels = 3;
    for (const int64_t width : {16, 16, 32}) {
      body->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(channels, width, 3).padding(1)));
      body->push_back(torch::nn::BatchNorm2d(width));
      body->push_back(torch::nn::ReLU());
      channels = width;
    }
    body->push_back(torch::nn::Dropout(0.2));
    body->push_back(torch::nn::AdaptiveAvgPool2d(1));
    register_module("body", body);
    head = register_module("head", torch::nn::Linear(channels, 10));
  }
  torch::Tensor loss(const torch::Tensor& x, const torch::Tensor& y) {
    return torch::nn::functional::cross_entropy(head(body->forward(x).flatten(1)), y);
  }
  torch::nn::Sequential body;
  torch::nn::Linear head{nullptr};
};

using Optimizers =
    std::function<std::unique_ptr<torch::optim::Optimizer>(std::vector<torch::Tensor>)>;

/// Training of a net whose step is `work`. Each step may differ.
struct GptTraining {
  explicit GptTraining(const Optimizers& make) {
    torch::manual_seed(1);
    net = std::make_shared<Net>();
    optimizer = make(net->parameters());
  }

  void set_rate(double rate) {
    for (auto& group : optimizer->param_groups()) group.options().set_lr(rate);
  }

  plan::StepTensors tensors() const {
    plan::StepTensors out;
    for (const auto& item : net->named_parameters())
      out.parameters.emplace_back(item.key(), item.value());
    for (const auto& item : net->named_buffers()) out.state.emplace_back(item.key(), item.value());
    return out;
  }

  /// Steps 0 to `steps`, with `options` within a budget. `before` is called ahead of each.
  void train(int steps, const std::optional<plan::PlannedStep::Options>& options,
             const std::function<void(int)>& before = nullptr) {
    torch::manual_seed(2);
    if (options && !planned)
      planned.emplace([this](const auto& inputs) { work(inputs); }, [this] { return tensors(); },
                      *options);
    for (int i = 0; i < steps; ++i) {
      if (before) before(i);
      auto generator = torch::make_generator<at::CPUGeneratorImpl>(100 + i);
      const auto x = torch::randn({batch, 3, 16, 16}, generator),
                 y = torch::randint(0, 10, {batch}, generator);
      if (planned)
        planned->run({{"x", x}, {"y", y}}, {});
      else
        work({x, y});
    }
  }

  std::vector<torch::Tensor> values() const {
    std::vector<torch::Tensor> out;
    for (const auto& value : net->parameters()) out.push_back(value.detach());
    for (const auto& value : net->buffers()) out.push_back(value);
    return out;
  }

  std::shared_ptr<Net> net;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::function<void(const std::vector<torch::Tensor>&)> work = [this](const auto& inputs) {
    optimizer->zero_grad();
    const auto loss = net->loss(inputs[0], inputs[1]);
    loss.backward();
    losses.push_back(loss.template item<double>());
    optimizer->step();
  };
  std::vector<double> losses;
  int64_t batch = 16;
  std::optional<plan::PlannedStep> planned;
};

std::unique_ptr<torch::optim::Optimizer> sgd(const std::vector<torch::Tensor>& parameters) {
  return std::make_unique<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.05).momentum(0.9));
}
std::unique_ptr<torch::optim::Optimizer> adamw(const std::vector<torch::Tensor>& parameters) {
  return std::make_unique<torch::optim::AdamW>(parameters,
                                               torch::optim::AdamWOptions(1e-3).weight_decay(0.1));
}

plan::PlannedStep::Options within(const char* budget) {
  return {.budget = budget, .solve_s = 1, .curve_budgets = 0};
}

void expect_same(const GptTraining& a, const GptTraining& b) {
  EXPECT_EQ(a.losses, b.losses);
  const auto x = a.values(), y = b.values();
  for (size_t i = 0; i < x.size(); ++i) EXPECT_TRUE(x[i].equal(y[i])) << "tensor " << i;
}

template <class Work>
UserError error_of(Work&& work) {
  try {
    work();
  } catch (const UserError& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return UserError("");
}

TEST(PlannedWork, AdamWWithACosineClippingAndAScaleIsEagerTrainingBitForBit) {
  constexpr int kSteps = 200;
  GptTraining eager(adamw), planned(adamw);
  for (GptTraining* t : {&eager, &planned}) {
    double scale = 1024;
    t->work = [t, &scale](const std::vector<torch::Tensor>& inputs) {
      t->optimizer->zero_grad();
      const auto loss = t->net->loss(inputs[0], inputs[1]);
      (loss * scale).backward();
      for (auto& parameter : t->net->parameters()) parameter.mutable_grad().div_(scale);
      t->losses.push_back(torch::nn::utils::clip_grad_norm_(t->net->parameters(), 0.5));
      t->losses.push_back(loss.item<double>());
      t->optimizer->step();
    };
    t->train(kSteps, t == &planned ? std::optional(within("0.7x")) : std::nullopt, [&](int step) {
      t->set_rate(0.5e-3 * (1 + std::cos(std::numbers::pi * step / kSteps)));
      scale = step % 20 < 10 ? 1024 : 2048;
    });
  }
  ASSERT_TRUE(planned.planned->report());
  EXPECT_LE(planned.planned->measured_bytes(), planned.planned->report()->budget_bytes);
  EXPECT_GT(planned.planned->report()->again_bytes + planned.planned->report()->offloaded_bytes, 0);
  expect_same(eager, planned);
}

TEST(PlannedWork, AdamsStepsAndARateThatEndsAreThoseOfEagerTraining) {
  for (const Optimizers& make : {Optimizers(sgd), Optimizers([](const auto& parameters) {
                                   return std::make_unique<torch::optim::Adam>(
                                       parameters, torch::optim::AdamOptions(1e-3).amsgrad(true));
                                 })}) {
    GptTraining eager(make), planned(make);
    for (GptTraining* t : {&eager, &planned})
      t->train(14, t == &planned ? std::optional(within("0.8x")) : std::nullopt, [&](int step) {
        if (step == 10) t->set_rate(0);
      });
    expect_same(eager, planned);
  }
}

TEST(PlannedWork, TensorsThatAreHeldKeepTheirValues) {
  GptTraining eager(sgd), planned(sgd);
  std::vector<std::vector<torch::Tensor>> held(2);
  for (GptTraining* t : {&eager, &planned}) {
    auto& mine = held[t == &eager ? 0 : 1];
    t->work = [t, &mine](const std::vector<torch::Tensor>& inputs) {
      t->optimizer->zero_grad(/*set_to_none=*/false);
      const auto loss = t->net->loss(inputs[0], inputs[1]);
      loss.backward();
      mine.push_back(loss.detach());
      mine.push_back(t->net->head->weight.grad().abs().sum());
      t->optimizer->step();
    };
    t->train(16, t == &planned ? std::optional(within("0.8x")) : std::nullopt);
  }
  expect_same(eager, planned);
  planned.planned.reset();
  ASSERT_EQ(held[0].size(), held[1].size());
  for (size_t i = 0; i < held[0].size(); ++i) EXPECT_TRUE(held[0][i].equal(held[1][i])) << i;
}

TEST(PlannedWork, ATensorThatIsHeldNowAndThenIsAnError) {
  GptTraining t(sgd);
  torch::Tensor kept;
  int step = 0;
  t.work = [&](const std::vector<torch::Tensor>& inputs) {
    t.optimizer->zero_grad();
    const auto loss = t.net->loss(inputs[0], inputs[1]);
    loss.backward();
    const auto seen = loss.detach();
    if (++step == 10) kept = seen;
    t.optimizer->step();
  };
  const UserError error = error_of([&] { t.train(12, within("0.8x")); });
  EXPECT_THAT(error.what(), HasSubstr("still holds the tensor that aten::nll_loss_forward"));
  EXPECT_EQ(step, 10);
}

TEST(PlannedWork, ALastBatchOfAnotherSizeIsRefusedUntouchedRunWithoutPlanOrPlannedAnew) {
  GptTraining eager(sgd), planned(sgd), anew(sgd);
  eager.train(12, {});
  planned.train(12, within("0.8x"));
  planned.batch = eager.batch = 10;
  const UserError error = error_of([&] { planned.train(1, within("0.8x")); });
  EXPECT_THAT(
      error.what(),
      HasSubstr("a step has x [10, 3, 16, 16] Float on cpu, but its plan is for [16, 3, 16, 16]"));
  EXPECT_THAT(error.help(), HasSubstr("leave out a last batch that is smaller"));
  expect_same(eager, planned);

  plan::PlannedStep::Options options = within("0.8x");
  options.other_sizes = plan::PlannedStep::OtherSizes::kPlanAnew;
  anew.train(12, options);
  eager.train(12, {});
  anew.batch = 10;
  anew.train(12, options);
  expect_same(eager, anew);

  GptTraining beside(sgd), all(sgd);
  options.other_sizes = plan::PlannedStep::OtherSizes::kRunWithoutPlan;
  for (GptTraining* t : {&beside, &all})
    for (const int64_t batch : {16, 10, 16}) {
      t->batch = batch;
      t->train(batch == 10 ? 2 : 12, t == &beside ? std::optional(options) : std::nullopt);
    }
  expect_same(all, beside);
  EXPECT_TRUE(beside.planned->runs_by_plan());
}

TEST(PlannedWork, ABranchOnAValueIsRefusedByName) {
  GptTraining t(sgd);
  int step = 0;
  t.work = [&](const std::vector<torch::Tensor>& inputs) {
    t.optimizer->zero_grad();
    const auto loss = t.net->loss(inputs[0], inputs[1]);
    loss.backward();
    if (++step < 10) t.optimizer->step();
  };
  const UserError error = error_of([&] { t.train(12, within("0.8x")); });
  EXPECT_THAT(error.what(), HasSubstr("the step ends where the recorded one calls aten::mul_"));
  EXPECT_THAT(error.help(), HasSubstr("torch::where"));
  EXPECT_EQ(step, 10);
}

TEST(PlannedWork, AReplayedStepWithAnotherNumberIsNoticed) {
  GptTraining t(sgd);
  torch::Tensor loss_now = torch::zeros({});
  t.work = [&](const std::vector<torch::Tensor>& inputs) {
    t.optimizer->zero_grad();
    const auto loss = t.net->loss(inputs[0], inputs[1]);
    loss.backward();
    loss_now.copy_(loss.detach());
    t.optimizer->step();
  };
  plan::PlannedStep::Options options = within("0.8x");
  options.replay = true;
  options.check_steps = 5;  // planned steps 0, 5 and 10 are steps 3, 8 and 13
  const UserError error = error_of([&] {
    t.train(20, options, [&](int step) {
      EXPECT_LE(step, 13);
      if (step == 10) t.set_rate(0);
    });
  });
  EXPECT_THAT(error.what(), HasSubstr("plan: aten::add_: argument \"alpha\" is -0, and was -0.05"));
  EXPECT_THAT(error.help(), HasSubstr("PlannedStep::Options::replay"));

  GptTraining item(sgd);  // whose step reads a value
  options.check_steps = 0;
  EXPECT_THAT(error_of([&] { item.train(4, options); }).what(),
              HasSubstr("aten::_local_scalar_dense"));
}

}  // namespace
}  // namespace dovetail::train::planned_work_test
