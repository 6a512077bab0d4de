"""`make install` elsewhere: the program runs there, with the model that was installed beside it.

install_test.py BUILD CMAKE
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parents[2]


def files(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


class Install(unittest.TestCase):
    def test_an_installed_program_runs_with_its_own_model(self):
        with tempfile.TemporaryDirectory() as prefix:
            subprocess.run(
                [CMAKE, "--install", BUILD, "--prefix", prefix, "--strip"],
                check=True,
                capture_output=True,
            )
            home = pathlib.Path(prefix)
            model = home / "share" / "percheron" / "models" / "nano"
            self.assertEqual(files(model), files(ROOT / "models" / "nano"))
            ids = home / "ids.json"
            ids.write_text("[[1, 2, 3, 4]]")
            # Neither the environment nor the place it is started from helps to find the model.
            run = subprocess.run(
                [home / "bin" / "percheron", "score", "--ids", ids, "--json"],
                cwd=prefix,
                env={"PATH": os.environ["PATH"]},
                capture_output=True,
                text=True,
            )
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertEqual(len(json.loads(run.stdout)["sequences"][0]["logprobs"]), 4)

            # It was that folder which was read: damaged, it is named.
            (model / "config.json").write_text("{}")
            run = subprocess.run(
                [home / "bin" / "percheron", "score", "--ids", ids],
                cwd=prefix,
                env={"PATH": os.environ["PATH"]},
                capture_output=True,
                text=True,
            )
            self.assertEqual(run.returncode, 1, run.stderr)
            self.assertIn(str(model), run.stderr)


if __name__ == "__main__":
    BUILD, CMAKE = sys.argv[1:3]
    unittest.main(argv=sys.argv[:1])
