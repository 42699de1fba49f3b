#include "dovetail/train/optimizer/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/types.h>

#include <cmath>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/models/gpt.h"

namespace dovetail::train::optimizer_test {
namespace {

models::ModelConfig small_model() {
  return models::resolve_model_config({.layers = 2,
                                       .width = 32,
                                       .heads = 2,
                                       .context = 8,
                                       .norm = "layernorm",
                                       .bias = true,
                                       .tied = false},
                                      60);
}

struct Trained {
  std::shared_ptr<models::GPT> model;
  std::optional<Optimizer> optimizer;
  std::optional<comm::GradientReducer> reducer;

  explicit Trained(at::ScalarType dtype, const OptimizerSection& config = {}) {
    model = std::make_shared<models::GPT>(small_model());
    initialize(*model, 5);
    optimizer.emplace(*model, config);
    model->set_compute_dtype(dtype);
    optimizer->bind(*model);
    reducer.emplace(comm::local_groups(1)[0], optimizer->parameters(),
                    comm::GradientReducer::Options{});
  }

  int64_t backward(int64_t step) {
    torch::manual_seed(step);
    const models::LossSum loss = model->loss(torch::randint(0, 60, {3, 9}, torch::kLong));
    reducer->begin();
    reducer->arm();
    loss.sum.backward();
    reducer->finish();
    return loss.weight;
  }
};

TEST(Optimizer, FollowsTorchAdamW) {
  Trained ours(at::kDouble, {.betas = {0.9, 0.97}, .eps = 1e-5, .weight_decay = 0.2});
  auto theirs = std::make_shared<models::GPT>(small_model());
  initialize(*theirs, 5);
  theirs->set_compute_dtype(at::kDouble);
  std::vector<at::Tensor> matrices, vectors;
  for (const auto& p : theirs->parameters()) (p.dim() >= 2 ? matrices : vectors).push_back(p);
  const auto options = [](double decay) {
    auto o = std::make_unique<torch::optim::AdamWOptions>(1e-3);
    o->betas({0.9, 0.97}).eps(1e-5).weight_decay(decay);
    return o;
  };
  torch::optim::AdamW peer({{matrices, options(0.2)}, {vectors, options(0.0)}},
                           torch::optim::AdamWOptions(1e-3));

  for (int64_t step = 0; step < 5; ++step) {
    const double lr = 1e-3 * static_cast<double>(step + 1);
    const auto tokens = static_cast<double>(ours.backward(step));
    ours.optimizer->set_update(Optimizer::Numbers{.lr = lr, .grad_scale = 1.0 / tokens});
    ours.optimizer->update(*ours.reducer);

    torch::manual_seed(step);
    peer.zero_grad();
    const models::LossSum loss = theirs->loss(torch::randint(0, 60, {3, 9}, torch::kLong));
    (loss.sum / static_cast<double>(loss.weight)).backward();
    for (auto& group : peer.param_groups())
      static_cast<torch::optim::AdamWOptions&>(group.options()).lr(lr);
    peer.step();
  }
  const auto a = ours.model->named_parameters(), b = theirs->named_parameters();
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::allclose(a[i].value(), b[i].value(), 1e-12, 1e-13)) << a[i].key();
  }
  EXPECT_EQ(ours.optimizer->updates(), 5);
}

/// Parameters with a later beginning: as if a second AdamW of torch had begun then.
TEST(Optimizer, AParameterThatBeginsLaterCountsItsOwnUpdates) {
  constexpr int64_t kBefore = 50, kSteps = 4;
  const OptimizerSection config = {.betas = {0.9, 0.999}, .eps = 1e-5, .weight_decay = 0};
  Trained ours(at::kDouble, config);
  const std::set<std::string> late = {"norm.weight", "blocks.1.ffn.up.weight"};
  std::map<std::string, int64_t> beginnings;
  for (const std::string& name : late) beginnings[name] = kBefore;
  // Moments of a run that had some updates. A later beginning has none.
  auto tensors = ours.optimizer->tensors();
  torch::manual_seed(1);
  for (auto& [name, tensor] : tensors) {
    if (name.starts_with("model.")) continue;
    const bool is_late = late.contains(name.substr(std::string("optimizer.m.").size()));
    tensor = is_late ? torch::zeros_like(tensor) : torch::rand_like(tensor) * 1e-3;
  }
  ours.optimizer->load(tensors, kBefore);
  ours.optimizer->set_beginnings(beginnings);
  struct Peer {
    at::Tensor w, m, v;
    int64_t t = 0;
  };
  std::map<std::string, Peer> peers;
  for (const auto& item : ours.model->named_parameters())
    peers[item.key()] = {
        item.value().detach().clone(), tensors.at("optimizer.m." + item.key()).clone(),
        tensors.at("optimizer.v." + item.key()).clone(), late.contains(item.key()) ? 0 : kBefore};
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto tokens = static_cast<double>(ours.backward(step));
    const auto names = ours.model->named_parameters();
    for (size_t i = 0; i < names.size(); ++i) {  // Kingma and Ba 2015, algorithm 1
      Peer& p = peers.at(names[i].key());
      const at::Tensor g = ours.reducer->gradient(i) / tokens;
      p.m = 0.9 * p.m + 0.1 * g;
      p.v = 0.999 * p.v + 0.001 * g * g;
      ++p.t;
      const auto t = static_cast<double>(p.t);
      p.w = p.w - 1e-3 * (p.m / (1 - std::pow(0.9, t))) /
                      (torch::sqrt(p.v / (1 - std::pow(0.999, t))) + 1e-5);
    }
    ours.optimizer->set_update(Optimizer::Numbers{.lr = 1e-3, .grad_scale = 1.0 / tokens});
    ours.optimizer->update(*ours.reducer);
  }
  for (const auto& item : ours.model->named_parameters())
    EXPECT_TRUE(torch::allclose(item.value(), peers.at(item.key()).w, 1e-12, 1e-13)) << item.key();
  for (const std::string& name : late) EXPECT_TRUE(peers.contains(name)) << name;
  EXPECT_EQ(ours.optimizer->updates(), kBefore + kSteps);
}

TEST(Optimizer, UnderBFloat16MastersKeepWhatRoundingWouldLose) {
  Trained t(at::kBFloat16);
  const auto before = t.optimizer->tensors();
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, tensor] : before) copies[name] = tensor.clone();
  const auto tokens = static_cast<double>(t.backward(1));
  // The update is far below half a unit of bfloat16 for most weights. A weight stored only in
  // bfloat16 would not change.
  t.optimizer->set_update(Optimizer::Numbers{.lr = 1e-6, .grad_scale = 1.0 / tokens});
  t.optimizer->update(*t.reducer);
  for (const auto& item : t.model->named_parameters()) {
    const at::Tensor master = before.at("model." + item.key());
    EXPECT_EQ(master.scalar_type(), at::kFloat) << item.key();
    EXPECT_FALSE(torch::equal(master, copies.at("model." + item.key()))) << item.key();
    EXPECT_TRUE(torch::equal(master.to(item.value().scalar_type()), item.value())) << item.key();
  }
  EXPECT_EQ(t.model->named_parameters()["blocks.0.attention.qkv.weight"].scalar_type(),
            at::kBFloat16);
}

TEST(Optimizer, LoadingRestoresTheSameBits) {
  for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    Trained first(dtype), second(dtype);
    const auto step = [](Trained& t, int64_t k) {
      const auto tokens = static_cast<double>(t.backward(k));
      t.optimizer->set_update(Optimizer::Numbers{.lr = 1e-3, .grad_scale = 1.0 / tokens});
      t.optimizer->update(*t.reducer);
    };
    for (int64_t k = 0; k < 3; ++k) step(first, k);
    second.optimizer->load(first.optimizer->tensors(), first.optimizer->updates());
    step(first, 3);
    step(second, 3);
    const auto a = first.optimizer->tensors(), b = second.optimizer->tensors();
    for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
  }
}

TEST(Optimizer, LoadingNamesTheTensorThatDoesNotFit) {
  Trained t(at::kFloat);
  const auto refusal = [&](auto change) {
    auto tensors = t.optimizer->tensors();
    change(tensors);
    try {
      t.optimizer->load(tensors, 1);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal([](auto& s) { s.erase("model.norm.weight"); }),
              ::testing::HasSubstr("model.norm.weight"));
  EXPECT_THAT(refusal([](auto& s) { s.erase("optimizer.m.norm.weight"); }),
              ::testing::HasSubstr("optimizer.m.norm.weight"));
  EXPECT_THAT(refusal([](auto& s) { s["model.extra"] = torch::zeros({1}); }),
              ::testing::HasSubstr("model.extra"));
  EXPECT_THAT(refusal([](auto& s) { s["model.norm.weight"] = torch::zeros({3}); }),
              ::testing::HasSubstr("model.norm.weight"));
  EXPECT_EQ(refusal([](auto& s) {
              std::erase_if(s, [](const auto& i) { return i.first.starts_with("optimizer."); });
            }),
            "accepted");
}

}  // namespace
}  // namespace dovetail::train::optimizer_test
