// A libtorch model trained within a memory budget: dovetail::plan::PlannedStep. Prints the bytes of
// a step that keeps everything, of the budget and of the planned step.
#include <dovetail/plan/step/planned_step.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  torch::nn::Sequential model;
  for (int i = 0; i < 8; ++i) {
    model->push_back(torch::nn::Linear(64, 64));
    model->push_back(torch::nn::GELU());
  }
  model->push_back(torch::nn::Linear(64, 10));
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(1e-3));

  double loss_now = 0;
  const auto work = [&](const std::vector<torch::Tensor>& inputs) {
    optimizer.zero_grad();
    const auto loss = torch::nn::functional::cross_entropy(model->forward(inputs[0]), inputs[1]);
    loss.backward();
    optimizer.step();
    loss_now = loss.item<double>();
  };
  // Tensors that the plan may move. The optimizer's moments could be added here as state.
  const auto tensors = [&] {
    dovetail::plan::StepTensors named;
    for (const auto& item : model->named_parameters())
      named.parameters.emplace_back(item.key(), item.value());
    return named;
  };
  dovetail::plan::PlannedStep step(work, tensors,
                                   {.budget = "0.7x", .offload = false, .solve_s = 2});
  for (int number = 1; number <= 20; ++number) {
    const auto x = torch::randn({256, 64});
    step.run({{"x", x}, {"y", x.narrow(1, 0, 10).argmax(1)}}, {});
    if (number % 5 == 0) std::printf("step %2d  loss %.4f\n", number, loss_now);
  }
  const dovetail::plan::MemoryPlanReport& made = *step.report();
  std::printf("everything kept %.2f MiB, budget %.2f MiB, planned step %.2f MiB\n",
              static_cast<double>(made.keep_all_bytes) / (1 << 20),
              static_cast<double>(made.budget_bytes) / (1 << 20),
              static_cast<double>(made.step_bytes) / (1 << 20));
}
