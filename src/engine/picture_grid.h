// A prompt's picture as the vision tower takes it: its grid of patches, and their rows on demand.
#pragma once

#include <cstddef>
#include <span>

#include "percheron/engine.h"

#include "model/vision_tower.h"
#include "ops/image_patches.h"

namespace percheron::engine {

// The grid keeps the image's canvas alive.
inline model::PatchGrid picture_grid(const PromptImage& image, const model::VisionConfig& config) {
    ops::PatchLayout layout;
    layout.patch = config.patch;
    layout.merge = config.merge;
    layout.frames = config.temporal_patch;
    model::PatchGrid grid;
    grid.height = image.grid_height;
    grid.width = image.grid_width;
    grid.rows = [canvas = image.canvas, layout](std::size_t first, std::size_t count,
                                                std::span<float> out) {
        ops::image_patches(canvas->pixels, canvas->width, layout, {canvas->mean, canvas->deviation},
                           first, count, out);
    };
    return grid;
}

}  // namespace percheron::engine
