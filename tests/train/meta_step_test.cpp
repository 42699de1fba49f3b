// Watches all operations of a training step on the meta device. Finds operations that would wait
// for a GPU or compute on the CPU.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/library.h>

#include <set>
#include <string>
#include <vector>

#include "dovetail/comm/gradient_reducer.h"
#include "dovetail/comm/group.h"
#include "dovetail/models/config.h"
#include "dovetail/models/gpt.h"
#include "dovetail/models/recommender.h"
#include "dovetail/moe/layer.h"
#include "dovetail/moe/names.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/optimizer/gradient_clipping.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/recommender/loss.h"

namespace dovetail {
namespace {

/// Operations that a step on a GPU must not have, or may have only once.
struct Seen {
  std::vector<std::string>
      host_reads;                  ///< results that are copied to the host, which waits for them
  std::vector<std::string> mixed;  ///< operations with tensors of the device and of the CPU
};
Seen* seen = nullptr;

constexpr c10::DispatchKey kMode = c10::DispatchKey::TESTING_ONLY_GenericMode;

bool on(const c10::IValue& value, c10::DeviceType device) {
  const auto is_there = [device](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() == device &&
           (device != c10::kCPU || tensor.dim() > 0);
  };
  if (value.isTensor()) return is_there(value.toTensor());
  if (!value.isTensorList()) return false;
  const auto list = value.toTensorVector();
  return std::any_of(list.begin(), list.end(), is_there);
}

bool names_the_cpu(const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i)
    if (op.schema().arguments()[i].name() == "device" && arguments[i].isDevice())
      return arguments[i].toDevice().is_cpu();
  return false;
}

/// Intercepts each operation before autograd and the kernels. A read by the host gets ones, since
/// the meta device has no values.
void see(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  static const std::set<std::string> kReads = {"aten::item",       "aten::_local_scalar_dense",
                                               "aten::is_nonzero", "aten::equal",
                                               "aten::nonzero",    "aten::masked_select"};
  const std::string name = op.schema().name();
  const std::vector<c10::IValue> arguments =
      torch::jit::last(*stack, op.schema().arguments().size()).vec();
  const bool device = std::any_of(arguments.begin(), arguments.end(),
                                  [](const auto& a) { return on(a, c10::kMeta); });
  const bool cpu = std::any_of(arguments.begin(), arguments.end(),
                               [](const auto& a) { return on(a, c10::kCPU); });
  if (device && kReads.contains(name)) {
    seen->host_reads.push_back(name);
    torch::jit::drop(*stack, arguments.size());
    torch::jit::push(*stack, at::ones({}, at::kDouble).item());
    return;
  }
  if (device && (name == "aten::to" || name == "aten::_to_copy") && names_the_cpu(op, arguments)) {
    seen->host_reads.push_back(name);
    torch::jit::drop(*stack, arguments.size());
    const at::Tensor from = arguments[0].toTensor();
    torch::jit::push(*stack, at::ones(from.sizes(), from.options().device(at::kCPU)));
    return;
  }
  if (device && cpu && name == "aten::copy_") {  // a copy to the device does not wait
    if (on(arguments[0], c10::kCPU)) {
      seen->host_reads.push_back(name);
      torch::jit::drop(*stack, arguments.size());
      torch::jit::push(*stack, arguments[0]);
      return;
    }
  } else if (device && cpu && name.starts_with("aten::")) {
    seen->mixed.push_back(name);
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kMode), stack);
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&see>());
}

/// Computes the shapes of an operation's results with zeros on the CPU. A tensor that the operation
/// writes gets the new shape.
void with_shapes_of_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard unseen(kMode);
  const size_t given = op.schema().arguments().size(), made = op.schema().returns().size();
  std::vector<at::Tensor> written;
  for (size_t i = 0; i < given; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, given);
    if (value.isDevice() && value.toDevice().is_meta()) value = at::Device(at::kCPU);
    if (!value.isTensor() || !on(value, c10::kMeta)) continue;
    const c10::AliasInfo* alias = op.schema().arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) written.push_back(value.toTensor());
    value = at::zeros(value.toTensor().sizes(), value.toTensor().options().device(at::kCPU));
  }
  op.callBoxed(stack);
  for (size_t i = 0; i < made; ++i) {
    c10::IValue& value = torch::jit::peek(*stack, i, made);
    if (!value.isTensor()) continue;
    value = i < written.size() ? written[i].resize_(value.toTensor().sizes())
                               : value.toTensor().to(at::kMeta);
  }
}

/// Registers with_shapes_of_the_cpu for all operations that have shapes on the meta device in
/// Python only.
TORCH_LIBRARY_IMPL(aten, Meta, m) {
  using c10::DispatchKey;
  const c10::DispatchKeySet with_shapes({DispatchKey::Meta, DispatchKey::CompositeImplicitAutograd,
                                         DispatchKey::CompositeExplicitAutograd,
                                         DispatchKey::CompositeExplicitAutogradNonFunctional});
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (!op || !name.name.starts_with("aten::") || !op->hasKernelForDispatchKey(DispatchKey::CPU) ||
        op->hasKernelForAnyDispatchKey(with_shapes))
      continue;
    const std::string overload = name.overload_name.empty() ? "" : "." + name.overload_name;
    m.impl((name.name + overload).c_str(),
           torch::CppFunction::makeFromBoxedFunction<&with_shapes_of_the_cpu>());
  }
}

models::ModelConfig config_of(const std::string& activation, const std::string& norm,
                              const std::string& positions) {
  models::ModelConfig config;
  config.layers = 4;
  config.width = 64;
  config.heads = 2;
  config.context = 32;
  config.vocab_size = 320;
  config.activation = activation;
  config.norm = norm;
  config.positions = positions;
  return models::resolve_model_config(config, 0);
}

/// The recipe whose experts `torch._scaled_grouped_mm` multiplies.
mx::RecipeSection e4m3_by_tensor() {
  const mx::RecipeSection::OperandSection one = {.blocks = "tensor", .scale_mode = "float32"};
  return {.name = "e4m3_by_tensor", .weight = one, .activation = one, .gradient = one};
}

Seen step_on_meta(const models::ModelConfig& model_config, const std::string& recipe,
                  int64_t micro_batch, bool checkpointed = false) {
  auto model = std::make_shared<models::GPT>(model_config, c10::kMeta);
  model->checkpoint_activations = checkpointed;
  train::Optimizer optimizer(*model, {});
  model->set_compute_dtype(recipe == "fp32" ? at::kFloat : at::kBFloat16);
  train::PrecisionSection precision;
  precision.recipe = recipe;
  precision.recipes = {e4m3_by_tensor()};
  train::Quantization quantization(*model, precision, recipe);
  optimizer.bind(*model);
  const auto group = comm::local_groups(1)[0];
  train::TrainStep step(model, optimizer, group, {.micro_batch = micro_batch, .clip = 1.0});
  const at::Tensor tokens = at::ones({4, model_config.context + 1}, at::kLong);
  Seen found;
  seen = &found;
  {
    const c10::impl::IncludeDispatchKeyGuard mode(kMode);
    quantization.begin_step(1, /*count=*/false);
    step.run(tokens, 1e-3, false);
    quantization.end_step(*group);
  }
  seen = nullptr;
  EXPECT_EQ(optimizer.updates(), 1) << "the step was skipped";
  return found;
}

TEST(MetaStep, AGptReadsFromTheDeviceOnce) {
  for (const std::string recipe : {"fp32", "bf16", "mxfp8", "fp8_tensor", "fp8_tensor_delayed"}) {
    for (const int64_t micro_batch : {4, 2}) {
      for (const bool checkpointed : {false, true}) {
        SCOPED_TRACE(recipe + " micro-batch " + std::to_string(micro_batch));
        const Seen found = step_on_meta(config_of("gelu", "layernorm", "learned"), recipe,
                                        micro_batch, checkpointed);
        EXPECT_THAT(found.host_reads, ::testing::SizeIs(1));
        EXPECT_THAT(found.mixed, ::testing::IsEmpty());
      }
    }
  }
}

TEST(MetaStep, LlamaAndNemotronReadFromTheDeviceOnce) {
  for (const std::string activation : {"swiglu", "relu2"}) {
    const Seen found = step_on_meta(config_of(activation, "rmsnorm", "rotary"), "bf16", 4);
    EXPECT_THAT(found.host_reads, ::testing::SizeIs(1)) << activation;
    EXPECT_THAT(found.mixed, ::testing::IsEmpty()) << activation;
  }
}

models::ModelConfig mixture_of(const std::string& router) {
  models::ModelConfig config = config_of("gelu", "rmsnorm", "rotary");
  config.moe.experts = 4;
  config.moe.router = router;
  config.moe.k = router == "base" || router == "hash" ? 1 : 2;
  return models::resolve_model_config(config, 0);
}

/// The step of a mixture whose experts' sizes stay on the device, as on a GPU.
void expect_one_read(const models::ModelConfig& config, int64_t micro_batch = 4,
                     bool checkpointed = false, const std::string& recipe = "bf16") {
  models::GPT model(config, c10::kMeta);
  model.set_compute_dtype(at::kBFloat16);
  train::PrecisionSection precision;
  precision.recipe = recipe;
  precision.recipes = {e4m3_by_tensor()};
  const train::Quantization quantization(model, precision, recipe);
  for (const auto& [name, layer] : moe::layers_of(model))
    EXPECT_EQ(layer->device_rows_obstacle(), "") << name;
  const Seen found = step_on_meta(config, recipe, micro_batch, checkpointed);
  EXPECT_THAT(found.host_reads, ::testing::SizeIs(1));
  EXPECT_THAT(found.mixed, ::testing::IsEmpty());
}

/// Sinkhorn, BASE and expert choice work on the CPU, which refuses a GPU: they have shapes alone.
TEST(MetaStep, AMixtureReadsFromTheDeviceAsOftenAsADenseModel) {
  for (const std::string_view router : moe::kRouterNames) {
    SCOPED_TRACE(router);
    expect_one_read(mixture_of(std::string(router)));
  }
  expect_one_read(mixture_of("top_k"), /*micro_batch=*/2);
  expect_one_read(mixture_of("top_k"), 4, /*checkpointed=*/true);
}

TEST(MetaStep, AMixtureInFloat8ReadsFromTheDeviceOnce) {
  models::ModelConfig config = mixture_of("top_k");
  for (const bool checkpointed : {false, true})
    expect_one_read(config, 4, checkpointed, "e4m3_by_tensor");
  config.bias = true;
  config.moe.drop = "position";
  config.moe.pad_to_capacity = true;
  expect_one_read(models::resolve_model_config(config, 0), 4, false, "e4m3_by_tensor");
}

TEST(MetaStep, OptionsOfAMixtureReadNothing) {
  const auto with = [](const std::string& what, auto change) {
    SCOPED_TRACE(what);
    models::ModelConfig config = config_of("swiglu", "rmsnorm", "rotary");
    config.moe.experts = 4;
    change(config);
    expect_one_read(models::resolve_model_config(config, 0));
  };
  with("biases", [](auto& c) { c.bias = true; });
  with("drop by position", [](auto& c) { c.moe.drop = "position"; });
  with("drop by probability", [](auto& c) { c.moe.drop = "probability"; });
  with("padded", [](auto& c) { c.moe.drop = "position", c.moe.pad_to_capacity = true; });
  with("slots by score", [](auto& c) { c.moe.drop = "position", c.moe.batch_prioritized = true; });
  with("a selection bias", [](auto& c) { c.moe.score = "sigmoid", c.moe.bias_update_rate = 1e-3; });
  with("groups", [](auto& c) { c.moe.num_groups = 2, c.moe.top_groups = 1; });
  with("shared experts", [](auto& c) { c.moe.shared_experts = 1, c.moe.z_loss = 1e-3; });
  with("load of a sequence", [](auto& c) { c.moe.load_scope = "sequence"; });
  with("a random second expert", [](auto& c) { c.moe.second_expert = "random"; });
}

/// The dense part of a recommender's step: forward, backward, norm, update.
Seen recommender_step_on_meta(const std::string& name, at::ScalarType compute) {
  models::RecommenderConfig config;
  config.model = name;
  config.dim = 8;
  models::RecommenderInputs inputs = {.dense = 3, .sparse = 4};
  if (name == "mmoe") inputs.tasks = 2;
  if (models::reads_sequences(config)) {
    inputs.sequences = {{.target = 0}};
    inputs.length = 5;
  }
  if (name == "can") inputs.co_actions = {{.item = 1, .sequence = 0}};
  models::forget_unread_keys(config, inputs);
  const auto model = models::make_recommender(config, inputs, c10::kMeta);
  train::Optimizer optimizer(*model, {});
  model->set_compute_dtype(compute);
  optimizer.bind(*model);
  const auto group = comm::local_groups(1)[0];
  comm::GradientReducer reducer(group, optimizer.parameters(), {.bucket_bytes = 1 << 20});
  const auto tensor = [](at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat) {
    return at::ones(sizes, at::TensorOptions(dtype).device(at::kMeta));
  };
  constexpr int64_t kSamples = 6;
  const models::RecommenderBatch batch = {
      .dense = tensor({kSamples, inputs.dense}),
      .embedded =
          tensor({kSamples, models::EmbeddedColumns(config, inputs).all()}).requires_grad_(),
      .mask = inputs.length > 0 ? tensor({kSamples, inputs.length}, at::kBool) : at::Tensor(),
      .negative_mask = models::has_negatives(config)
                           ? tensor({kSamples, inputs.length - 1}, at::kBool)
                           : at::Tensor()};
  const at::Tensor labels = tensor({kSamples, inputs.tasks}), scales = tensor({inputs.tasks});
  Seen found;
  seen = &found;
  {
    const c10::impl::IncludeDispatchKeyGuard mode(kMode);
    reducer.begin();
    reducer.arm();
    const models::RecommenderOutput made = model->forward(batch);
    const at::Tensor loss = train::loss_sum(made.logits, labels, scales);
    (made.auxiliary.defined() ? loss + made.auxiliary : loss).backward();
    reducer.finish();
    std::vector<at::Tensor> gradients;
    for (size_t i = 0; i < reducer.size(); ++i) gradients.push_back(reducer.gradient(i));
    std::vector<at::Tensor> numbers = train::squares_of(gradients);
    numbers.push_back(loss.detach().to(at::kDouble));
    train::read_together(numbers);
    optimizer.set_update(train::Optimizer::Numbers{.lr = 0.1});
    optimizer.update(reducer);
  }
  seen = nullptr;
  return found;
}

/// Tables are on the CPU: their lookups and updates are not part of this.
TEST(MetaStep, TheDensePartOfARecommenderReadsFromTheDeviceOnce) {
  for (const std::string name :
       {"wide_deep", "deepfm", "dlrm", "dcnv2", "din", "dien", "can", "mmoe"}) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(name + " " + c10::toString(compute));
      const Seen found = recommender_step_on_meta(name, compute);
      EXPECT_THAT(found.host_reads, ::testing::SizeIs(1));
      EXPECT_THAT(found.mixed, ::testing::IsEmpty());
    }
  }
}

/// The watch detects a second read and a tensor that was left on the CPU.
TEST(MetaStep, ReadsAndTensorsLeftOnTheCpuAreSeen) {
  const at::Tensor x = at::empty({3}, at::kMeta), left = at::ones({3});
  Seen found;
  seen = &found;
  {
    const c10::impl::IncludeDispatchKeyGuard mode(kMode);
    x.sum().item<double>();
    x.cpu();
    at::empty({3}).copy_(x);
    try {
      x.add(left);
    } catch (const c10::Error&) {  // newer versions of ATen refuse it
    }
  }
  seen = nullptr;
  EXPECT_THAT(found.host_reads, ::testing::ElementsAre("aten::item", "aten::to", "aten::copy_"));
  EXPECT_THAT(found.mixed, ::testing::ElementsAre("aten::add"));
}

}  // namespace
}  // namespace dovetail
