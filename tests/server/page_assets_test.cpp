#include "server/page_assets.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace percheron::server {
namespace {

std::string read_whole(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
}

std::filesystem::path page_folder() {
    return std::filesystem::path(PERCHERON_SOURCE_DIR) / "src/server/page";
}

TEST(PageAssets, HoldEveryFileOfTheFolderByteForByte) {
    std::set<std::string_view> tags;
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(page_folder())) {
        if (entry.path().extension() == ".h") continue;
        const std::string name = entry.path().filename();
        const bool page = entry.path().extension() == ".html";
        const std::string own = name == "index.html" ? "/" : "/" + entry.path().stem().string();
        const auto asset = find_page_asset(page ? own : "/assets/" + name);
        ASSERT_TRUE(asset) << name;
        EXPECT_EQ(asset->body, read_whole(entry.path())) << name;
        EXPECT_TRUE(asset->etag.size() > 2 && asset->etag.front() == '"' &&
                    asset->etag.back() == '"');
        EXPECT_NE(asset->content_type.find("charset=utf-8"), std::string_view::npos) << name;
        tags.insert(asset->etag);
        ++files;
    }
    EXPECT_GT(files, 0u);
    EXPECT_EQ(tags.size(), files) << "two files share an ETag";
}

TEST(PageAssets, TypeFollowsTheName) {
    const std::pair<const char*, const char*> expected[] = {
        {"/", "text/html; charset=utf-8"},
        {"/assets/app.js", "text/javascript; charset=utf-8"},
        {"/dashboard", "text/html; charset=utf-8"},
        {"/assets/base.css", "text/css; charset=utf-8"},
        {"/assets/icon.svg", "image/svg+xml; charset=utf-8"},
    };
    for (const auto& [path, type] : expected) {
        const auto asset = find_page_asset(path);
        ASSERT_TRUE(asset) << path;
        EXPECT_EQ(asset->content_type, type);
    }
}

// Every address that the page's own files name is one this server has: nothing is remote or
// missing.
TEST(PageAssets, LoadOnlyOneAnother) {
    const std::regex reference(R"re((?:src|href)="([^"#][^"]*)"|from '([^']+)'|url\(([^)]*)\))re");
    std::size_t references = 0;
    for (const auto& entry : std::filesystem::directory_iterator(page_folder())) {
        if (entry.path().extension() == ".h") continue;
        const std::string text = read_whole(entry.path());
        for (std::sregex_iterator match(text.begin(), text.end(), reference), end; match != end;
             ++match) {
            std::string path = (*match)[1].str() + (*match)[2].str() + (*match)[3].str();
            if (path.starts_with("./")) path.replace(0, 1, "/assets");
            EXPECT_TRUE(find_page_asset(path)) << entry.path() << " names " << path;
            ++references;
        }
    }
    EXPECT_GT(references, 10u);
}

TEST(PageAssets, NothingElseIsFound) {
    for (const char* path :
         {"", "/index.html", "/dashboard.html", "/assets/", "/assets", "/assets/../index.html",
          "/assets/files.h", "/assets/nothing.js", "assets/app.js", "//"}) {
        EXPECT_FALSE(find_page_asset(path)) << path;
    }
}

TEST(PageAssets, IfNoneMatchIsAListAndComparesWeakly) {
    const PageAsset asset{"/", "text/html", "\"abc\"", ""};
    for (const char* header :
         {"\"abc\"", "W/\"abc\"", "*", "\"x\", \"abc\"", "\"x\" ,\tW/\"abc\" ", ",,\"abc\""}) {
        EXPECT_TRUE(client_has(asset, header)) << header;
    }
    for (const char* header :
         {"", "abc", "\"abcd\"", "\"x\", \"y\"", ",", " ", "W/", "\"ab", "**"}) {
        EXPECT_FALSE(client_has(asset, header)) << header;
    }
}

TEST(PageHeaders, PolicyForbidsInlineAndRemote) {
    std::string_view policy;
    for (const PageHeader& header : page_headers) {
        if (header.name == "Content-Security-Policy") policy = header.value;
    }
    EXPECT_NE(policy.find("default-src 'none'"), policy.npos);
    EXPECT_NE(policy.find("script-src 'self';"), policy.npos);
    EXPECT_EQ(policy.find("unsafe"), policy.npos);
    EXPECT_EQ(policy.find("http"), policy.npos);
}

}  // namespace
}  // namespace percheron::server
