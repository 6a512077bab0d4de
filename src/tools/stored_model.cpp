#include "tools/stored_model.h"

#include <string>
#include <system_error>
#include <utility>

#include "tools/model_path.h"
#include "tools/synth.h"

namespace percheron::tools {

namespace fs = std::filesystem;

Result<StoredModel> StoredModel::of(const fs::path& model, const fs::path& out) {
    if (!is_synthetic(model.string())) return StoredModel(model, false);
    SynthOptions options;
    PERCHERON_ASSIGN(options.spec, synthetic_spec(model.string()));
    const auto embedded = resolve_model("");
    if (embedded.ok()) options.tokenizer_from = *embedded;
    fs::path place = out.lexically_normal();
    if (!place.has_filename()) place = place.parent_path();
    std::string name(".");
    name.append(place.filename().string()).append(".made-up");
    StoredModel stored(place.parent_path() / name, true);
    std::error_code ignored;
    fs::remove_all(stored.folder(), ignored);  // of a run that was stopped
    PERCHERON_TRY(synth(stored.folder(), options));
    for (const auto& entry : fs::directory_iterator(stored.folder(), ignored))
        fs::last_write_time(entry.path(), fs::file_time_type(), ignored);
    return stored;
}

StoredModel::StoredModel(StoredModel&& other) noexcept
    : folder_(std::move(other.folder_)), written_(std::exchange(other.written_, false)) {}

StoredModel::~StoredModel() {
    if (!written_) return;
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
}

}  // namespace percheron::tools
