#include "dovetail/train/numerics/quantization.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/comm/collective.h"
#include "dovetail/comm/group.h"
#include "dovetail/models/gpt.h"
#include "dovetail/mx/linear.h"

namespace dovetail::train {
namespace {

using mx::kOperands;

/// Returns true for values of precision.recipe that name only a dtype.
bool names_dtype(const std::string& recipe) {
  return recipe == "auto" || recipe == "fp32" || recipe == "fp64";
}

/// Built-in recipes, then the user's recipes.
std::vector<mx::Recipe> all_recipes(const PrecisionSection& config) {
  std::vector<mx::Recipe> recipes = mx::built_in_recipes();
  for (const mx::RecipeSection& section : config.recipes) {
    const bool taken = names_dtype(section.name) ||
                       std::any_of(recipes.begin(), recipes.end(),
                                   [&](const auto& other) { return other.name == section.name; });
    if (taken)
      throw UserError(fmt::format("precision.recipes: the name \"{}\" is taken", section.name),
                      "choose another name");
    recipes.push_back(mx::make_recipe(section));
  }
  return recipes;
}

std::vector<mx::Operand> operands(const PrecisionOverride& entry) {
  std::vector<mx::Operand> result;
  for (const std::string& tensor : entry.tensors) {
    const auto found = std::find_if(kOperands.begin(), kOperands.end(), [&](mx::Operand operand) {
      return mx::name(operand) == tensor;
    });
    user_check(found != kOperands.end(),
               "precision.override.tensors names \"{}\"; valid are weight, activation, gradient",
               tensor);
    result.push_back(*found);
  }
  return result;
}

bool matches(const PrecisionOverride& entry, const std::string& name) {
  return std::any_of(entry.layers.begin(), entry.layers.end(), [&](const std::string& glob) {
    return fnmatch(glob.c_str(), name.c_str(), 0) == 0;
  });
}

/// Block number in the name of a Linear: 3 for "blocks.3.ffn.up".
int64_t block_of(const std::string& name) {
  constexpr std::string_view kPrefix = "blocks.";
  DOVETAIL_CHECK(name.starts_with(kPrefix), "{} is in no block", name);
  return std::stoll(name.substr(kPrefix.size()));
}

void check_globs(const PrecisionSection& config,
                 const std::vector<std::shared_ptr<mx::Linear>>& linears) {
  for (const PrecisionOverride& entry : config.overrides) {
    for (const std::string& glob : entry.layers) {
      const PrecisionOverride one = {.layers = {glob}};
      const bool used = std::any_of(linears.begin(), linears.end(), [&](const auto& linear) {
        return matches(one, linear->options().name);
      });
      if (used) continue;
      throw UserError(
          fmt::format("precision.override.layers: \"{}\" matches no Linear of this model's blocks",
                      glob),
          fmt::format("they are called {} to {}; embedding and head stay in high precision",
                      linears.front()->options().name, linears.back()->options().name));
    }
  }
}

/// Throws UserError if high_precision_ends has no effect. Only precision.recipe reads it, because
/// an override names its layers.
void check_ends(const PrecisionSection& config, const std::vector<mx::Recipe>& recipes) {
  for (const mx::RecipeSection& section : config.recipes) {
    if (section.high_precision_ends == 0) continue;
    const std::string key = fmt::format("high_precision_ends = {} of the recipe \"{}\"",
                                        section.high_precision_ends, section.name);
    user_check(mx::find_recipe(recipes, section.name).linear.quantizes(),
               "{} does nothing: the recipe quantizes nothing; leave it out", key);
    const bool overrides = std::ranges::any_of(
        config.overrides, [&](const auto& entry) { return entry.recipe == section.name; });
    user_check(!overrides || config.recipe == section.name,
               "{} does nothing in precision.override, which names its layers; leave it out", key);
  }
}

/// Recipe of a Linear: `recipe`, then all overrides except `left_out`.
mx::LinearRecipe overridden(mx::LinearRecipe recipe, const std::string& linear,
                            const PrecisionSection& config, const std::vector<mx::Recipe>& recipes,
                            const PrecisionOverride* left_out = nullptr) {
  for (const PrecisionOverride& entry : config.overrides) {
    if (&entry == left_out || !matches(entry, linear)) continue;
    mx::LinearRecipe other = mx::find_recipe(recipes, entry.recipe).linear;
    for (const mx::Operand operand : operands(entry)) recipe.of(operand) = other.of(operand);
  }
  return recipe;
}

UserError no_native(const std::string& obstacle) {
  return UserError(fmt::format("precision.gemm = \"native\": {}", obstacle),
                   "use precision.gemm = \"emulated\"");
}

/// Makes the error for a recipe that quantizes no Linear of `model`. `ends` blocks at each end of
/// the model stay in high precision.
UserError nothing_quantized(const models::GPT& model, const PrecisionSection& config,
                            const std::string& recipe, int64_t ends) {
  const int64_t blocks = model.config().layers;
  const std::string what = fmt::format("precision.recipe = \"{}\" quantizes nothing here", recipe);
  const std::string kept =
      fmt::format("it leaves {} block{} at each end in high precision", ends, ends == 1 ? "" : "s");
  if (2 * ends >= blocks)
    return UserError(
        fmt::format("{}: {}, and the model has {} (blocks.0 to blocks.{})", what, kept, blocks,
                    blocks - 1),
        fmt::format("use model.layers > {}, name layers in precision.override, or use a recipe "
                    "without high_precision_ends (dovetail config --explain precision.recipe)",
                    2 * ends));
  std::vector<std::string> globs;
  for (const PrecisionOverride& entry : config.overrides)
    globs.insert(globs.end(), entry.layers.begin(), entry.layers.end());
  return UserError(
      fmt::format("{}: {}precision.override of {} takes out all Linears of blocks.{} to blocks.{}",
                  what, ends > 0 ? kept + ", and " : "", fmt::join(globs, ", "), ends,
                  blocks - 1 - ends),
      "narrow precision.override.layers, or set precision.recipe = \"bf16\" without overrides");
}

}  // namespace

void check_native(const mx::NativeDevice& device) {
  const std::string obstacle = mx::native_obstacle(device);
  if (!obstacle.empty()) throw no_native(obstacle);
}

void check_precision(const PrecisionSection& config) {
  const std::vector<mx::Recipe> recipes = all_recipes(config);
  if (!names_dtype(config.recipe)) {
    std::vector<std::string> names = precision_names(config);
    names.emplace_back("auto");
    if (std::find(names.begin(), names.end(), config.recipe) == names.end()) {
      const std::string nearest = nearest_word(config.recipe, names);
      throw UserError(fmt::format("precision.recipe = \"{}\" is not a recipe", config.recipe),
                      nearest.empty() ? fmt::format("use one of {}", fmt::join(names, ", "))
                                      : fmt::format("did you mean \"{}\"?", nearest));
    }
  }
  for (const PrecisionOverride& entry : config.overrides) {
    user_check(!entry.layers.empty(), "precision.override.layers is empty");
    operands(entry);
    mx::find_recipe(recipes, entry.recipe);
  }
  check_ends(config, recipes);
}

std::vector<std::string> precision_names(const PrecisionSection& config) {
  std::vector<std::string> names = {"fp32", "fp64"};
  for (const mx::Recipe& recipe : all_recipes(config)) names.push_back(recipe.name);
  return names;
}

bool quantizes(const PrecisionSection& config) {
  const std::vector<mx::Recipe> recipes = all_recipes(config);
  const auto does = [&](const std::string& name) {
    return !names_dtype(name) && mx::find_recipe(recipes, name).linear.quantizes();
  };
  return does(config.recipe) ||
         std::ranges::any_of(config.overrides, does, &PrecisionOverride::recipe);
}

Quantization::Quantization(models::GPT& model, const PrecisionSection& config,
                           const std::string& name) {
  const std::vector<mx::Recipe> recipes = all_recipes(config);
  const std::vector<std::shared_ptr<mx::Linear>> linears = mx::quantizable_linears(model);
  check_globs(config, linears);
  mx::LinearRecipe base;
  int64_t ends = 0;
  if (!names_dtype(name)) {
    const mx::Recipe& found = mx::find_recipe(recipes, name);
    base = found.linear;
    ends = found.high_precision_ends;
  }
  const mx::Gemm gemm = config.gemm == "native" ? mx::Gemm::kNative : mx::Gemm::kEmulated;
  std::vector<bool> matter(config.overrides.size(), false);
  for (const auto& linear : linears) {
    const int64_t block = block_of(linear->options().name);
    const bool at_end = block < ends || block >= model.config().layers - ends;
    const mx::LinearRecipe begins = at_end ? mx::LinearRecipe{} : base;
    const mx::LinearRecipe recipe = overridden(begins, linear->options().name, config, recipes);
    mx::check_hadamard(recipe, linear->options().name);
    for (size_t i = 0; i < config.overrides.size(); ++i)
      if (overridden(begins, linear->options().name, config, recipes, &config.overrides[i]) !=
          recipe)
        matter[i] = true;
    const mx::Linear::Options& options = linear->options();
    if (gemm == mx::Gemm::kNative && recipe.quantizes()) {
      const std::string obstacle = mx::native_obstacle(recipe, options.in, options.out);
      if (!obstacle.empty()) throw no_native(fmt::format("{}: {}", options.name, obstacle));
    }
    const bool nvfp4 = std::ranges::any_of(
        kOperands, [&](mx::Operand operand) { return recipe.of(operand).is_nvfp4(); });
    if (nvfp4 && !linear->weight.is_cpu() && !linear->weight.is_meta())
      throw UserError(fmt::format("{}: NVFP4 on a GPU is not implemented", options.name),
                      "use precision.recipe = \"mxfp4_stochastic\", or train on the CPU");
    linear->set_recipe(recipe, gemm);
    recipes_.push_back(recipe);
    if (recipe.quantizes()) layers_.push_back(linear);
  }
  if (name == "fp64" && !layers_.empty())
    throw UserError(fmt::format("precision.override quantizes {}, but the run computes in fp64",
                                layers_.front()->options().name),
                    "use precision.recipe = \"bf16\" or \"fp32\"");
  for (size_t i = 0; i < matter.size(); ++i) {
    const PrecisionOverride& entry = config.overrides[i];
    user_check(matter[i],
               "precision.override of {} does nothing: without it the recipe \"{}\" or another "
               "override gives these layers the same; leave it out",
               fmt::join(entry.layers, ", "), name);
  }
  if (base.quantizes() && layers_.empty()) throw nothing_quantized(model, config, name, ends);
  if (gemm == mx::Gemm::kNative && layers_.empty())
    throw UserError(
        fmt::format("precision.gemm = \"native\", but nothing is quantized under {}", name),
        "name a quantizing recipe (precision.recipe = \"mxfp8\"), or leave precision.gemm out");
  make_histories();
}

void Quantization::make_histories() {
  struct Named {
    mx::QuantizedLinear* layer;
    mx::Operand operand;
    std::string name;
  };
  std::map<int64_t, std::vector<Named>> by_length;
  for (const auto& layer : layers_) {
    for (const mx::Operand operand : kOperands) {
      const int64_t length = layer->quantized()->recipe().of(operand).history;
      if (length > 0)
        by_length[length].push_back(
            {layer->quantized(), operand,
             fmt::format("{}.{}", layer->options().name, mx::name(operand))});
    }
  }
  for (const auto& [length, operands] : by_length) {
    std::vector<mx::Format> formats;
    std::vector<std::string> names;
    for (const Named& one : operands) {
      formats.push_back(*one.layer->recipe().of(one.operand).format);
      names.push_back(one.name);
    }
    const mx::AmaxHistories histories(formats, length, layers_.front()->weight.device());
    for (size_t i = 0; i < operands.size(); ++i)
      operands[i].layer->set_delayed(operands[i].operand, histories.of(static_cast<int64_t>(i)));
    delayed_.push_back({std::move(names), histories});
  }
}

nlohmann::ordered_json Quantization::statistics(int64_t step) const {
  auto tensors = nlohmann::ordered_json::array();
  for (const auto& layer : layers_) {
    const mx::LinearRecipe& recipe = layer->quantized()->recipe();
    const mx::LinearStatistics& counts = layer->quantized()->statistics();
    for (const mx::Operand operand : kOperands) {
      const mx::OperandRecipe& how = recipe.of(operand);
      const mx::Statistics& s = counts.of(operand);
      if (s.blocks == 0) continue;
      const auto of_blocks = [&](int64_t count) {
        return static_cast<double>(count) / static_cast<double>(s.blocks);
      };
      const bool all_zero = s.min_scale > s.max_scale;
      const double sqnr_db = s.sqnr_db();
      using Json = nlohmann::ordered_json;
      tensors.push_back({{"layer", layer->options().name},
                         {"tensor", mx::name(operand)},
                         {"format", mx::name(*how.format)},
                         {"blocks", mx::name(how.blocks)},
                         {"scale_mode", how.float32_scales ? "float32"
                                        : how.is_nvfp4()   ? "e4m3"
                                                           : mx::name(how.scale_mode)},
                         {"underflow", s.underflow_fraction()},
                         {"saturation", s.saturation_fraction()},
                         {"saturating_blocks", of_blocks(s.saturating_blocks)},
                         {"saturating_blocks_under_floor", of_blocks(s.floor_saturated_blocks)},
                         {"non_finite_blocks", s.non_finite_blocks},
                         {"sqnr_db", std::isfinite(sqnr_db) ? Json(sqnr_db) : Json()},
                         {"amax", s.amax()},
                         {"scales", all_zero ? Json()
                                             : Json({s.min_scale - mx::kScaleBias,
                                                     s.max_scale - mx::kScaleBias})}});
    }
  }
  return {{"step", step}, {"tensors", std::move(tensors)}};
}

std::vector<std::string> Quantization::warnings(const nlohmann::ordered_json& statistics) {
  struct Loss {
    const char *key, *words;
    double most;
  };
  constexpr Loss kLosses[] = {{"underflow", "of the elements became zero", kMostUnderflow},
                              {"saturating_blocks", "of the blocks saturated", kMostSaturation}};
  std::vector<std::string> lines;
  for (const Loss& loss : kLosses) {
    for (const mx::Operand operand : kOperands) {
      const nlohmann::ordered_json* worst = nullptr;
      int64_t layers = 0;
      for (const auto& t : statistics.at("tensors")) {
        if (t["tensor"] != mx::name(operand) || t[loss.key].get<double>() <= loss.most) continue;
        if (!warned_.insert(fmt::format("{} {} {}", loss.key, t["layer"].dump(), mx::name(operand)))
                 .second)
          continue;
        ++layers;
        if (worst == nullptr || (*worst)[loss.key] < t[loss.key]) worst = &t;
      }
      if (worst == nullptr) continue;
      const auto word = [&](const char* key) { return (*worst)[key].get<std::string>(); };
      lines.push_back(fmt::format(
          "step {}: {} of {} ({}, {}): {:.1f} % {}{}", statistics["step"].get<int64_t>(),
          word("tensor"), word("layer"), word("format"), word("scale_mode"),
          100 * (*worst)[loss.key].get<double>(), loss.words,
          layers > 1 ? fmt::format("; above {:g} % in {} more layers, see quantization.jsonl",
                                   100 * loss.most, layers - 1)
                     : ""));
    }
  }
  return lines;
}

void Quantization::begin_step(uint64_t seed, bool count) {
  for (size_t i = 0; i < layers_.size(); ++i)
    layers_[i]->quantized()->begin_step(mix_seed(seed, i), count);
  for (Delayed& delayed : delayed_) delayed.histories.begin_step();
}

void Quantization::end_step(comm::Group& group) {
  for (Delayed& delayed : delayed_) {
    delayed.histories.end_step([&](const at::Tensor& seen) {
      at::Tensor most = seen;
      if (group.size() > 1)
        for (const at::Tensor& other : group.all_gather(seen)) most = at::maximum(most, other);
      return most;
    });
  }
}

std::map<std::string, at::Tensor> Quantization::tensors() const {
  std::map<std::string, at::Tensor> found;
  for (const Delayed& delayed : delayed_) {
    for (size_t i = 0; i < delayed.names.size(); ++i)
      found[fmt::format("{}amax.{}", kTensorPrefix, delayed.names[i])] =
          delayed.histories.of(static_cast<int64_t>(i)).history;
  }
  return found;
}

void Quantization::load(const std::map<std::string, at::Tensor>& tensors, comm::Group& group) {
  std::map<std::string, at::Tensor> own = this->tensors();
  comm::on_rank_zero(group, "restoring the checkpoint", [&] {
    for (auto& [name, tensor] : own) {
      const auto found = tensors.find(name);
      if (found == tensors.end() || found->second.sizes() != tensor.sizes())
        throw UserError(fmt::format("the checkpoint has no {} of {} steps", name, tensor.size(0)),
                        "go on with the recipe that it was made with, or begin a new run");
      tensor.copy_(found->second);
    }
    for (const auto& [name, tensor] : tensors)
      user_check(own.contains(name),
                 "the checkpoint holds {}, which this run's recipe does not read", name);
  });
  for (auto& [name, tensor] : own) group.broadcast(tensor, 0);
  for (Delayed& delayed : delayed_) delayed.histories.restored();
}

}  // namespace dovetail::train
