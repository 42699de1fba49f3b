#pragma once

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/data/images/image_loader.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/models/vision.h"
#include "dovetail/train/metrics/validation.h"
#include "dovetail/train/run/stored_run.h"

namespace dovetail::train {

/// Prefix of a buffer's name in a checkpoint.
inline const std::string kBufferPrefix = "buffer.";

/// Moves the buffers among a checkpoint's `tensors` to `model`, and removes them from `tensors`.
/// Throws UserError if one is missing or has another shape.
void load_buffers(models::VisionModel& model, std::map<std::string, at::Tensor>& tensors);

/// Returns the part of a checkpoint's state that identifies the images. It has the names of the
/// classes' folders, and the number of training images.
nlohmann::json images_state(const data::ImageLoader& loader);
/// Throws UserError if the images are not the ones of the checkpoint, by images_state. `images` is
/// images.train. Ranks other than 0 pass null. All ranks call this together.
void check_images(const io::StoredCheckpoint* checkpoint, const data::ImageLoader& loader,
                  const std::string& images, comm::Group& group);

/// Vision model of a checkpoint, in evaluation mode.
struct TrainedVision {
  std::shared_ptr<models::VisionModel> model;
  std::vector<std::string> classes;  ///< names of the classes' folders; empty: numbers
};
/// Loads the model of a checkpoint. Throws UserError for a checkpoint of another model.
TrainedVision load_vision(const StoredRun& stored);

/// Writes `model`.safetensors to a new folder: parameters and buffers by name. vgg and resnet50
/// have torchvision's names. Also writes config.json with the model's config and its classes.
void export_vision(const TrainedVision& trained, const RunConfig& config,
                   const std::filesystem::path& folder);

/// Measures the model on images, as VisionTraining does. `images` and `targets`: as
/// ImagesConfig::validation; empty: the validation samples of the run.
Validation measure_vision(const TrainedVision& trained, const RunConfig& config,
                          const std::string& images, const std::string& targets,
                          comm::Group& group);

/// Returns the scores as text: "loss 0.4123, accuracy 87.5 %, mean IoU 0.7512".
std::string scores_text(const Validation& found);

}  // namespace dovetail::train
