// A GPT trained from C++ without the trainer: model, loss as a sum, AdamW. Learns to count
// modulo 17.
#include <dovetail/models/gpt.h>
#include <dovetail/ops/adamw.h>
#include <torch/torch.h>

#include <cstdio>
#include <vector>

int main() {
  dovetail::models::ModelConfig config;
  config.layers = 2;
  config.width = 64;
  config.heads = 4;
  config.context = 32;
  config = dovetail::models::resolve_model_config(config, /*tokenizer_vocab=*/17);
  dovetail::models::GPT model(config);
  dovetail::models::initialize(model, /*seed=*/1);

  std::vector<dovetail::ops::AdamWTensor> states;
  for (auto& parameter : model.parameters()) {
    states.push_back({.parameter = parameter.detach(),
                      .m = torch::zeros_like(parameter),
                      .v = torch::zeros_like(parameter)});
  }

  double loss_per_token = 0;
  for (int64_t step = 1; step <= 100; ++step) {
    const auto starts = torch::randint(17, {16, 1});
    const auto tokens = (starts + torch::arange(config.context + 1)) % 17;
    model.zero_grad();
    const auto loss = model.loss(tokens);
    loss.sum.backward();
    const auto parameters = model.parameters();
    for (size_t i = 0; i < states.size(); ++i) states[i].gradient = parameters[i].grad();
    dovetail::ops::adamw_step(
        states, {.lr = 3e-3, .grad_scale = 1.0 / static_cast<double>(loss.weight), .step = step});
    loss_per_token = loss.sum.item<double>() / static_cast<double>(loss.weight);
    if (step % 20 == 0) std::printf("step %3ld  loss %.4f nats per token\n", step, loss_per_token);
  }
  return loss_per_token < 0.5 ? 0 : 1;
}
