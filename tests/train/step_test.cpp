#include "dovetail/train/gpt/step.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <limits>

namespace dovetail::train::step_test {
namespace {

struct Trained {
  std::shared_ptr<models::GPT> model;
  std::optional<Optimizer> optimizer;
  std::optional<TrainStep> step;

  explicit Trained(StepOptions options) {
    model = std::make_shared<models::GPT>(
        models::resolve_model_config({.layers = 1, .width = 32, .heads = 2, .context = 8}, 50));
    initialize(*model, 3);
    optimizer.emplace(*model, OptimizerSection{.weight_decay = 0.0});
    optimizer->bind(*model);
    step.emplace(model, *optimizer, comm::local_groups(1)[0], options);
  }

  StepOutcome run(int64_t seed, bool want_stop = false) {
    torch::manual_seed(seed);
    return step->run(torch::randint(0, 50, {4, 9}, torch::kLong), 1e-3, want_stop);
  }
  at::Tensor weight() const { return model->named_parameters()["embed.weight"]; }
};

void expect_same_weights(const Trained& a, const Trained& b) {
  const auto left = a.optimizer->tensors(), right = b.optimizer->tensors();
  for (const auto& [name, tensor] : left) EXPECT_TRUE(torch::equal(tensor, right.at(name))) << name;
}

// A value that breaks one step and is repaired afterwards leaves no trace. Weights, moments and the
// count of updates are unaffected.
TEST(TrainStep, AStepThatIsNotFiniteIsAsIfItHadNotBeen) {
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity(),
                           -std::numeric_limits<double>::infinity()}) {
    Trained disturbed({.micro_batch = 4, .clip = 1.0}),
        undisturbed({.micro_batch = 4, .clip = 1.0});
    disturbed.run(1);
    undisturbed.run(1);
    const at::Tensor good = disturbed.weight().detach().clone();
    disturbed.weight().detach().fill_(bad);
    const StepOutcome outcome = disturbed.run(2);
    EXPECT_TRUE(outcome.skipped);
    EXPECT_FALSE(std::isfinite(outcome.loss) && std::isfinite(outcome.grad_norm));
    disturbed.weight().detach().copy_(good);
    expect_same_weights(disturbed, undisturbed);

    EXPECT_FALSE(disturbed.run(3).skipped);
    undisturbed.run(3);
    expect_same_weights(disturbed, undisturbed);
    EXPECT_EQ(disturbed.optimizer->updates(), 2);
  }
}

TEST(TrainStep, ClippingScalesTheGradientToItsNorm) {
  Trained free({.micro_batch = 4}), clipped({.micro_batch = 4, .clip = 0.01}),
      loose({.micro_batch = 4, .clip = 1e6});
  const double norm = free.run(1).grad_norm;
  EXPECT_GT(norm, 0.01);
  EXPECT_EQ(clipped.run(1).grad_norm, norm);
  loose.run(1);
  expect_same_weights(free, loose);
  // The first moment is (1 - beta1) times the gradient that the update saw.
  const auto update_norm = [](const Trained& t) {
    double squares = 0;
    for (const auto& [name, tensor] : t.optimizer->tensors()) {
      if (name.starts_with("optimizer.m."))
        squares += tensor.to(at::kDouble).square().sum().item<double>();
    }
    return std::sqrt(squares) / 0.1;
  };
  EXPECT_NEAR(update_norm(free), norm, 1e-5 * norm);
  EXPECT_NEAR(update_norm(clipped), 0.01, 1e-7);
}

TEST(TrainStep, PassesTheWishToStopOn) {
  Trained t({.micro_batch = 4});
  EXPECT_FALSE(t.run(1).stop);
  EXPECT_TRUE(t.run(2, true).stop);
}

}  // namespace
}  // namespace dovetail::train::step_test
