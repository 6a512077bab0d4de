#include "cache/tier_folder.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>

#include "core/files.h"
#include "core/logging.h"

namespace percheron::cache {
namespace {

namespace fs = std::filesystem;

// A file's time is set when it is used, but not more often than this.
constexpr std::int64_t seconds_between_stamps = 60;

std::int64_t seconds_now() {
    return std::chrono::duration_cast<std::chrono::seconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
}

Error refused_by_system(const fs::path& path, std::string_view action, int code) {
    return Error(ErrorCode::io, "--prefix-disk " + path.string() + ": cannot " +
                                    std::string(action) + ": " + std::strerror(code) +
                                    "; name a folder that can be written");
}

}  // namespace

Result<std::unique_ptr<TierFolder>> TierFolder::open(TierOptions options) {
    std::unique_ptr<TierFolder> folder(new TierFolder(std::move(options)));
    PERCHERON_TRY(folder->lock());
    PERCHERON_TRY(folder->scan());
    return folder;
}

Status TierFolder::lock() {
    std::error_code error;
    if (!fs::exists(options_.folder, error)) {
        fs::create_directories(options_.folder, error);
        if (error) return refused_by_system(options_.folder, "be made", error.value());
        // Prompts can be told from their latents.
        fs::permissions(options_.folder, fs::perms::owner_all, error);
    }
    auto lock = FileLock::take(options_.folder / "lock");
    if (!lock.ok()) {
        const bool taken = lock.error().code() == ErrorCode::unavailable;
        return Error(lock.error().code(), "--prefix-disk " + options_.folder.string() +
                                              (taken ? " is " : ": ") + lock.error().message() +
                                              (taken ? "; give every server a folder of its own"
                                                     : "; name a folder that can be written"));
    }
    lock_.emplace(std::move(*lock));
    return {};
}

Status TierFolder::scan() {
    std::vector<fs::path> paths;
    std::error_code error;
    for (fs::directory_iterator at(options_.folder, error), end; !error && at != end;
         at.increment(error)) {
        paths.push_back(at->path());
    }
    if (error) return refused_by_system(options_.folder, "be listed", error.value());
    for (const fs::path& path : paths) {
        if (is_tier_name(path)) {
            look_at(path);
        } else if (path.extension() == ".partial" && is_tier_name(path.stem())) {
            fs::remove(path, error);
        }
    }
    if (refused_ > 0) {
        log_warning("--prefix-disk " + options_.folder.string() + ": " + std::to_string(refused_) +
                    " files are damaged, or of another model, program or version, and are not "
                    "read");
    }
    by_use_.sort([](const Entry* a, const Entry* b) { return a->stamp < b->stamp; });
    make_room(0);
    lost_.clear();
    return {};
}

void TierFolder::look_at(const fs::path& path) {
    Result<TierFile> file = read_tier_file(path);
    if (!file.ok() && file.error().code() == ErrorCode::corrupt) {
        log_warning("--prefix-disk: " + file.error().message() + "; it is removed");
        std::error_code ignored;
        fs::remove(path, ignored);
        ++refused_;
        return;
    }
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || !S_ISREG(status.st_mode)) return;
    const bool known = file.ok();
    TierFile content = known ? std::move(file).value() : TierFile{};
    const Bytes wanted =
        content.kind == TierFile::Kind::pages ? options_.page_bytes : options_.state_bytes;
    const bool ours =
        known && content.identity == options_.identity && content.piece_bytes == wanted;
    if (!ours) {
        ++refused_;
        content.keys.clear();
    }
    Entry& entry = add(path, std::move(content), static_cast<Bytes>(status.st_size));
    entry.stamp = status.st_mtim.tv_sec;
}

// Whatever is in the folder by our names counts and goes in its turn; only what is readable has
// keys.
TierFolder::Entry& TierFolder::add(fs::path path, TierFile file, Bytes bytes) {
    auto owned = std::make_unique<Entry>();
    Entry& entry = *owned;
    entries_.emplace(&entry, std::move(owned));
    entry.path = std::move(path);
    entry.file = std::move(file);
    entry.bytes = bytes;
    entry.place = by_use_.insert(by_use_.end(), &entry);
    for (std::uint32_t piece = 0; piece < entry.file.keys.size(); ++piece) {
        const BlockKey& key = entry.file.keys[piece];
        if (entry.file.kind == TierFile::Kind::pages) {
            blocks_[key] = {&entry, piece};
        } else {
            states_[key] = &entry;
        }
    }
    bytes_ += bytes;
    return entry;
}

// Who holds the last key of a file now.
TierFolder::Entry* TierFolder::entry_of(const TierFile& file) const {
    if (file.kind == TierFile::Kind::pages) {
        const auto place = blocks_.find(file.keys.back());
        return place == blocks_.end() ? nullptr : place->second.entry;
    }
    const auto place = states_.find(file.keys.back());
    return place == states_.end() ? nullptr : place->second;
}

std::vector<BlockKey> TierFolder::blocks() const {
    std::vector<BlockKey> keys;
    for (const auto& [key, place] : blocks_)
        keys.push_back(key);
    return keys;
}

std::vector<BlockKey> TierFolder::states() const {
    std::vector<BlockKey> keys;
    for (const auto& [key, entry] : states_)
        keys.push_back(key);
    return keys;
}

void TierFolder::touch(Entry& entry) {
    by_use_.splice(by_use_.end(), by_use_, entry.place);
    entry.used = touches_;
    const std::int64_t now = seconds_now();
    if (now - entry.stamp < seconds_between_stamps) return;
    entry.stamp = now;
    const timespec times[2] = {{0, UTIME_OMIT}, {now, 0}};
    ::utimensat(AT_FDCWD, entry.path.c_str(), times, 0);
}

// All files up to a block, the last one first: what stands before others goes after them.
void TierFolder::touch_path(const BlockKey& last_block) {
    auto place = blocks_.find(last_block);
    while (place != blocks_.end() && place->second.entry->used != touches_) {
        Entry& entry = *place->second.entry;
        touch(entry);
        place = blocks_.find(entry.file.before);
    }
}

void TierFolder::touch(const BlockKey& state) {
    ++touches_;
    const auto found = states_.find(state);
    if (found != states_.end()) touch(*found->second);
    touch_path(state);
}

// False: all that is left is what was touched last.
bool TierFolder::make_room(Bytes bytes) {
    if (bytes > options_.limit) return false;
    while (bytes_ + bytes > options_.limit) {
        if (!give_up_oldest()) return false;
    }
    return true;
}

// False: what was used longest ago is what the file under way stands on.
bool TierFolder::give_up_oldest() {
    if (by_use_.empty()) return false;
    Entry& oldest = *by_use_.front();
    if (oldest.used == touches_ && touches_ > 0) return false;
    std::error_code error;
    fs::remove(oldest.path, error);
    ++evictions_;
    remove(oldest);
    return true;
}

void TierFolder::remove(Entry& entry) {
    for (const BlockKey& key : entry.file.keys) {
        if (entry.file.kind == TierFile::Kind::pages) {
            const auto place = blocks_.find(key);
            if (place == blocks_.end() || place->second.entry != &entry) continue;
            blocks_.erase(place);
        } else {
            const auto place = states_.find(key);
            if (place == states_.end() || place->second != &entry) continue;
            states_.erase(place);
        }
        lost_.push_back({entry.file.kind, key});
    }
    bytes_ -= entry.bytes;
    by_use_.erase(entry.place);
    entries_.erase(&entry);
}

// A file that could not be read as it was written.
Error TierFolder::give_up(Entry& entry, Error error) {
    ++refused_;
    log_warning("--prefix-disk: " + error.message() + "; it is removed");
    std::error_code ignored;
    fs::remove(entry.path, ignored);
    remove(entry);
    return error;
}

Result<bool> TierFolder::write(TierFile file, std::span<const std::span<const std::byte>> pieces) {
    file.identity = options_.identity;
    const Bytes bytes = file.bytes();
    ++touches_;
    touch_path(file.before);
    if (!make_room(bytes)) return false;
    const fs::path path = options_.folder / file.name();
    Status written = write_tier_file(path, file, pieces, options_.write);
    // Where others fill the disk, it is full before the limit is reached.
    while (!written.ok() && written.error().reason() == disk_full && give_up_oldest()) {
        written = write_tier_file(path, file, pieces, options_.write);
    }
    PERCHERON_TRY(written);
    if (Entry* const same = entry_of(file); same != nullptr && same->path == path) {
        remove(*same);  // replaced
    }
    Entry& entry = add(path, std::move(file), bytes);
    entry.stamp = seconds_now();
    ++touches_;
    touch(entry);
    touch_path(entry.file.before);
    return true;
}

Result<bool> TierFolder::write_pages(const BlockKey& before, bool root,
                                     std::span<const BlockKey> keys,
                                     std::span<const std::span<const std::byte>> pages) {
    if (!root && !has_block(before)) return false;
    TierFile file;
    file.kind = TierFile::Kind::pages;
    file.before = before;
    file.keys.assign(keys.begin(), keys.end());
    file.piece_bytes = options_.page_bytes;
    return write(std::move(file), pages);
}

Result<bool> TierFolder::write_state(const BlockKey& key, CheckpointKind kind,
                                     std::span<const std::byte> state) {
    if (!has_block(key)) return false;
    TierFile file;
    file.kind = TierFile::Kind::state;
    file.checkpoint = kind;
    file.before = key;
    file.keys = {key};
    file.piece_bytes = options_.state_bytes;
    return write(std::move(file), std::span(&state, 1));
}

std::size_t TierFolder::together(std::span<const BlockKey> keys, std::size_t most) const {
    std::size_t count = 0;
    BlockPlace first;
    while (count < std::min(keys.size(), most)) {
        const auto place = blocks_.find(keys[count]);
        if (place == blocks_.end()) break;
        if (count == 0) first = place->second;
        if (place->second.entry != first.entry || place->second.piece != first.piece + count) break;
        ++count;
    }
    return count;
}

Status TierFolder::read_pages(std::span<const BlockKey> keys, std::span<std::byte> pages) {
    while (!keys.empty()) {
        const std::size_t count = together(keys, keys.size());
        if (count == 0) return Error(ErrorCode::not_found, "a block is no longer there");
        const BlockPlace place = blocks_.at(keys.front());
        const Bytes bytes = count * options_.page_bytes;
        if (Status read =
                read_pieces(place.entry->path, place.entry->file, place.piece, pages.first(bytes));
            !read.ok()) {
            return give_up(*place.entry, std::move(read).error());
        }
        keys = keys.subspan(count);
        pages = pages.subspan(bytes);
    }
    return {};
}

Result<CheckpointKind> TierFolder::read_state(const BlockKey& key, std::span<std::byte> state) {
    const auto place = states_.find(key);
    if (place == states_.end()) {
        return Error(ErrorCode::not_found, "a state is no longer there");
    }
    Entry& entry = *place->second;
    if (Status read = read_pieces(entry.path, entry.file, 0, state); !read.ok()) {
        return give_up(entry, std::move(read).error());
    }
    return entry.file.checkpoint;
}

}  // namespace percheron::cache
