#include "tools/model_path.h"

#include <cstdlib>
#include <system_error>
#include <vector>

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* embedded_model = "nano";
constexpr std::string_view synthetic_prefix = "synth:";

bool is_model_folder(const fs::path& folder) {
    std::error_code error;
    return fs::is_regular_file(folder / "config.json", error);
}

// Folders that may hold models, in the order they are looked at.
std::vector<fs::path> model_homes() {
    std::vector<fs::path> homes;
    if (const char* variable = std::getenv("PERCHERON_MODELS");
        variable != nullptr && *variable != '\0') {
        homes.emplace_back(variable);
    }
    std::error_code error;
    const fs::path binary = fs::read_symlink("/proc/self/exe", error);
    if (!error) {
        const fs::path folder = binary.parent_path();
        homes.push_back(folder / "models");
        homes.push_back(folder.parent_path() / "models");
        homes.push_back(folder.parent_path() / "share" / "percheron" / "models");
    }
    homes.emplace_back(PERCHERON_SOURCE_MODELS);
    return homes;
}

}  // namespace

bool is_synthetic(std::string_view model) {
    return model.starts_with(synthetic_prefix);
}

Result<checkpoint::SyntheticSpec> synthetic_spec(std::string_view model) {
    auto spec = checkpoint::parse_spec(model.substr(synthetic_prefix.size()));
    if (!spec.ok()) return spec.error().in(std::string(model));
    return spec;
}

Result<fs::path> resolve_model(const std::string& model) {
    if (is_synthetic(model)) {
        PERCHERON_ASSIGN(const auto checked, synthetic_spec(model));
        static_cast<void>(checked);
        return fs::path(model);
    }
    std::error_code error;
    if (!model.empty() && fs::is_directory(model, error)) return fs::path(model);
    const std::string name = model.empty() ? embedded_model : model;
    if (name.find('/') != std::string::npos) {
        return Error(ErrorCode::not_found, name + ": there is no such folder");
    }
    std::string looked;
    for (const fs::path& home : model_homes()) {
        if (is_model_folder(home / name)) return home / name;
        looked += (looked.empty() ? "" : ", ") + home.string();
    }
    return Error(ErrorCode::not_found, "there is no model '" + name + "' here or in " + looked +
                                           "; name a folder, or set PERCHERON_MODELS");
}

}  // namespace percheron::tools
