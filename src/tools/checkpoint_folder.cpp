#include "tools/checkpoint_folder.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string>
#include <string_view>
#include <system_error>

#include "core/files.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view generation_config = "generation_config.json";
constexpr std::string_view companions[] = {
    generation_config,       "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json",
    "chat_template.jinja",   "preprocessor_config.json",
    "processor_config.json", "video_preprocessor_config.json",
};

std::string gibibytes(Bytes bytes) {
    char text[32];
    std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / (1u << 30));
    return text;
}

}  // namespace

Status check_free_space(const fs::path& out, Bytes bytes) {
    const auto free = free_space(out);
    if (!free || *free >= bytes) return {};
    return Error(ErrorCode::io, out.string() + ": " + gibibytes(bytes) +
                                    " would be written and the disk has " + gibibytes(*free) +
                                    " free; name a folder on another disk or a smaller size");
}

Status make_output_folder(const fs::path& out, Bytes bytes) {
    std::error_code error;
    if (fs::exists(out, error) && !fs::is_directory(out, error)) {
        return Error(ErrorCode::invalid_argument, out.string() + ": exists and is not a folder");
    }
    fs::path replaced;
    fs::directory_iterator entries(out, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
        const fs::path& path = entries->path();
        if (path.extension() == ".safetensors" || path.filename() == "config.json" ||
            path.filename() == "model.safetensors.index.json") {
            return Error(ErrorCode::invalid_argument, path.string() +
                                                          ": there is a checkpoint already; name "
                                                          "another OUT or remove it first");
        }
        const bool is_companion = std::find(std::begin(companions), std::end(companions),
                                            path.filename().string()) != std::end(companions);
        if (is_companion) replaced = path;
    }
    if (!replaced.empty()) {
        return Error(
            ErrorCode::invalid_argument,
            replaced.string() + ": would be replaced; name another OUT or remove it first");
    }
    PERCHERON_TRY(check_free_space(out, bytes));
    error.clear();
    fs::create_directories(out, error);
    if (error) {
        return Error(ErrorCode::io, out.string() + ": cannot make the folder: " + error.message());
    }
    return {};
}

Status copy_companions(const fs::path& from, const fs::path& to, Companions which) {
    for (const std::string_view name : companions) {
        if (which == Companions::tokenizer_only && name == generation_config) continue;
        std::error_code error;
        if (!fs::exists(from / name, error) || fs::equivalent(from / name, to / name, error)) {
            continue;
        }
        // Rewritten rather than copied: the source's permissions are its own.
        PERCHERON_ASSIGN(const std::string text, read_text_file(from / name, Bytes{1} << 30));
        PERCHERON_TRY(write_text_file(to / name, text));
    }
    return {};
}

}  // namespace percheron::tools
