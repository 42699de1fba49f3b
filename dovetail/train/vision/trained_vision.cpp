#include "dovetail/train/vision/trained_vision.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/comm/collective.h"
#include "dovetail/data/images/image_loader.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/train/config/vision.h"
#include "dovetail/train/vision/validation.h"

namespace dovetail::train {
namespace {

/// Copies the tensor `prefix + name` of a checkpoint to `to`, and removes it from `tensors`.
void take(std::map<std::string, at::Tensor>& tensors, const std::string& prefix,
          const std::string& name, const at::Tensor& to) {
  const auto found = tensors.find(prefix + name);
  if (found == tensors.end() || found->second.sizes() != to.sizes())
    throw UserError(fmt::format("the checkpoint has no tensor \"{}{}\" of shape [{}]", prefix, name,
                                fmt::join(to.sizes(), ", ")),
                    "resume with the config of the checkpoint (config.toml of its run)");
  const at::NoGradGuard no_grad;
  to.copy_(found->second);
  tensors.erase(found);
}

}  // namespace

void load_buffers(models::VisionModel& model, std::map<std::string, at::Tensor>& tensors) {
  for (const auto& item : model.named_buffers())
    take(tensors, kBufferPrefix, item.key(), item.value());
}

nlohmann::json images_state(const data::ImageLoader& loader) {
  return {{"classes", loader.classes()}, {"training_images", loader.num_train()}};
}

void check_images(const io::StoredCheckpoint* checkpoint, const data::ImageLoader& loader,
                  const std::string& images, comm::Group& group) {
  comm::on_rank_zero(group, "comparing the images", [&] {
    const auto then = checkpoint->state().value("classes", std::vector<std::string>());
    user_check(then == loader.classes(),
               "images.train = \"{}\" has the folders {}, but the run was trained on {}; put them "
               "back to resume it",
               images, fmt::join(loader.classes(), ", "), fmt::join(then, ", "));
    const auto count = checkpoint->state().value("training_images", loader.num_train());
    user_check(count == loader.num_train(),
               "images.train = \"{}\" has {} images to train on, but the run was trained on {}. "
               "Put them back to resume it, and images.validation, too. Without it a share of "
               "images.train is held out",
               images, loader.num_train(), count);
  });
}

TrainedVision load_vision(const StoredRun& stored) {
  if (stored.config.kind() != RunKind::kVision)
    throw UserError(fmt::format("{} belongs to a {}, not to a vision model",
                                stored.checkpoint.string(), stored.config.kind_in_words()));
  TrainedVision out{.model = models::make_vision_model(vision_config(stored.config.vision)),
                    .classes = stored.snapshot.state.value("classes", std::vector<std::string>())};
  std::map<std::string, at::Tensor> tensors = stored.snapshot.tensors;
  load_buffers(*out.model, tensors);
  for (const auto& item : out.model->named_parameters())
    take(tensors, kModelPrefix, item.key(), item.value());
  out.model->eval();
  return out;
}

void export_vision(const TrainedVision& trained, const RunConfig& config,
                   const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  user_check(!error, "cannot make {}: {}", folder.string(), error.message());
  std::map<std::string, at::Tensor> tensors;
  for (const auto& item : trained.model->named_parameters())
    tensors.emplace(item.key(), item.value().detach());
  for (const auto& item : trained.model->named_buffers()) tensors.emplace(item.key(), item.value());
  io::write_safetensors(folder / "model.safetensors", tensors);
  const models::VisionConfig& model = trained.model->config();
  const nlohmann::ordered_json json = {
      {"model", model.preset},
      {"classes", model.classes},
      {"class_names", trained.classes},
      {"channels", model.channels},
      {"height", model.height},
      {"width", model.width},
      {"base_width", model.base_width},
      {"mean", data::mean_of(config.images, model.channels)},
      {"deviation", data::deviation_of(config.images, model.channels)}};
  write_file_atomically(folder / "config.json", json.dump(2) + "\n");
}

Validation measure_vision(const TrainedVision& trained, const RunConfig& config,
                          const std::string& images, const std::string& targets,
                          comm::Group& group) {
  data::ImagesConfig source = config.images;
  data::ImageLoaderOptions options{.batch = config.train.batch};
  if (!images.empty()) {
    source.train = source.validation = images;
    source.targets = source.validation_targets = targets;
    options.train_key = "--data";
    options.targets_key = "the second --data";
  }
  const data::ImageLoader loader(source, image_form(trained.model->config()), options);
  user_check(loader.num_validation() > 0,
             "the run held no images out; name images to measure on with --data");
  if (loader.classes() != trained.classes)
    throw UserError(
        fmt::format("{} has other folders of classes than the model was trained on", source.train));
  const int64_t asked = config.train.micro_batch;
  return validate(
      *trained.model, loader.num_validation(), asked > 0 ? asked : config.train.batch,
      [&](int64_t begin, int64_t end) { return loader.validation(begin, end); }, group);
}

std::string scores_text(const Validation& found) {
  std::string text =
      fmt::format("loss {:.4f}, accuracy {:.2f} %", found.loss, 100 * found.images->accuracy);
  if (found.images->mean_iou) text += fmt::format(", mean IoU {:.4f}", *found.images->mean_iou);
  return text;
}

}  // namespace dovetail::train
