// Our side of bench/gpt.py: the trainer's own step on fixed tokens, driven line by line on stdin.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/nn/module.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/group.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/models/gpt.h"
#include "dovetail/models/size.h"
#include "dovetail/plan/step/planned_step.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace {

using namespace dovetail;

struct Options {
  models::ModelConfig model;
  int64_t batch = 1, threads = 1;
  double lr = 1e-3, solve_s = 30;
  std::string dtype = "fp32", weights, budget, folder;
  bool checkpoint = false;
};

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("One training step on request: see bench/gpt.py");
  app.add_option("--layers", options.model.layers)->required();
  app.add_option("--width", options.model.width)->required();
  app.add_option("--heads", options.model.heads)->required();
  app.add_option("--context", options.model.context)->required();
  app.add_option("--vocab", options.model.vocab_size)->required();
  app.add_option("--batch", options.batch)->required();
  app.add_option("--threads", options.threads)->required();
  app.add_option("--lr", options.lr)->required();
  app.add_option("--dtype", options.dtype)->check(CLI::IsMember({"fp32", "bf16"}))->required();
  app.add_option("--save-weights", options.weights)->required();
  app.add_option("--budget", options.budget, "train by a memory plan");
  app.add_option("--folder", options.folder, "disk tier of the plan");
  app.add_option("--solve", options.solve_s, "seconds of making the plan");
  app.add_flag("--checkpoint", options.checkpoint, "recompute every block");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : 2);
  }
  // GPT-2's architecture, which PyTorch has the strongest kernels for.
  options.model.norm = "layernorm";
  options.model.activation = "gelu";
  options.model.positions = "learned";
  options.model.bias = true;
  options.model.tied = true;
  options.model = models::resolve_model_config(options.model, options.model.vocab_size);
  return options;
}

void reply(const nlohmann::json& answer) { std::cout << answer.dump() << std::endl; }

nlohmann::json shares_of(train::TrainStep& step, const at::Tensor& tokens, double lr) {
  start_trace(/*aten=*/true);
  step.run(tokens, lr, /*want_stop=*/false);
  const auto shares = trace_shares();
  return {{"gemm", shares.gemm_s / shares.total_s},
          {"attention", shares.attention_s / shares.total_s},
          {"other", shares.other_s / shares.total_s}};
}

int run(int argc, char** argv) {
  const auto options = parse(argc, argv);
  at::set_num_threads(static_cast<int>(options.threads));
  keep_freed_memory();  // as `dovetail train`
  const auto baseline = resident_bytes();
  reset_peak_resident();

  std::shared_ptr<plan::PagedAllocations> paged;
  if (!options.folder.empty()) paged = std::make_shared<plan::PagedAllocations>(options.folder);
  auto model = std::make_shared<models::GPT>(options.model);
  initialize(*model, /*seed=*/1);
  std::map<std::string, at::Tensor> weights;
  for (const auto& parameter : model->named_parameters())
    weights[parameter.key()] = parameter.value().detach();
  io::write_safetensors(options.weights, weights);
  weights.clear();

  train::Optimizer optimizer(
      *model, {.lr = options.lr, .betas = {0.9, 0.95}, .eps = 1e-8, .weight_decay = 0.1});
  if (options.dtype == "bf16") model->set_compute_dtype(at::kBFloat16);
  optimizer.bind(*model);
  model->checkpoint_activations = options.checkpoint;
  train::TrainStep step(model, optimizer, comm::world_from_environment(),
                        {.micro_batch = options.batch, .clip = 1.0});

  if (!options.budget.empty())
    step.plan_memory({.budget = options.budget,
                      .folder = options.folder,
                      .offload = !options.folder.empty(),
                      .solve_s = options.solve_s,
                      .paged = std::move(paged)});

  // torch.randint under the same seed in bench/peer_gpt.py gives the same tokens.
  auto generator = at::make_generator<at::CPUGeneratorImpl>(1);
  const auto tokens =
      at::randint(options.model.vocab_size, {options.batch, options.model.context + 1}, generator,
                  at::TensorOptions().dtype(at::kLong));

  const auto size = models::model_size(options.model);
  reply({{"parameters", size.parameters},
         {"flops_per_token", size.flops_per_token},
         {"machine", machine_json()}});

  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int64_t count = 0;
    words >> command >> count;
    if (command == "steps") {
      std::vector<double> losses;
      const double begin = now_seconds();
      for (int64_t i = 0; i < count; ++i)
        losses.push_back(step.run(tokens, options.lr, /*want_stop=*/false).loss);
      reply({{"seconds", now_seconds() - begin}, {"losses", losses}});
    } else if (command == "plan") {  // trains until there is one
      while (!step.memory_plan()->report()) step.run(tokens, options.lr, /*want_stop=*/false);
      reset_peak_resident();
      reply(to_json(*step.memory_plan()->report()));
    } else if (command ==
               "graph") {  // writes the plan's graph.json and plan.json next to the weights
      const auto folder = std::filesystem::path(options.weights).parent_path();
      step.memory_plan()->write(folder);
      reply({{"file", (folder / "graph.json").string()}});
    } else if (command == "memory") {
      nlohmann::json memory = {{"bytes", peak_resident_bytes() - baseline}};
      if (step.memory_plan() != nullptr && step.memory_plan()->report())
        memory["step_bytes"] = step.memory_plan()->measured_bytes();
      reply(memory);
    } else if (command == "rate") {  // after "memory": its operands count
      const auto type = options.dtype == "bf16" ? GemmType::kBFloat16 : GemmType::kFloat32;
      reply({{"gemm_rate", measure_gemm_rate(type, at::kCPU, /*seconds=*/0.3)}});
    } else if (command == "shares") {
      reply(shares_of(step, tokens, options.lr));
    } else {
      throw UserError(fmt::format("unknown command '{}'", command),
                      "steps N, plan, graph, memory, rate or shares");
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
}
