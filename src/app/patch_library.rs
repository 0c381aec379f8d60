//! Patches that come with kdeploy, the user's own, and the files that are given with them.

use camino::{Utf8Path, Utf8PathBuf};

use super::context::{App, store_error};
use super::explain_inputs::config_error;
use crate::config::Settings;
use crate::patch::{PatchLibrary, parse_patch};
use crate::report::{Diagnostic, ErrorCode};
use crate::store::read_given;

/// Largest patch file, and largest file that is given with one.
const MAX_PATCH_BYTES: u64 = 1 << 20;

/// All patches; of the same name the user's own wins.
///
/// # Errors
/// When a patch has a mistake or cannot be read.
pub(super) fn load_library(app: &App) -> Result<PatchLibrary, Diagnostic> {
    let mut library = PatchLibrary::embedded().map_err(|error| config_error(&error))?;
    let directory = app.dirs.config.join("patches");
    let mut files: Vec<Utf8PathBuf> = match directory.read_dir_utf8() {
        Ok(entries) => entries.flatten().map(|entry| entry.into_path()).collect(),
        Err(_) => Vec::new(),
    };
    files.retain(|file| file.extension() == Some("toml"));
    files.sort();
    for file in files {
        let Some(text) = read_text(&file)? else { continue };
        let patch = parse_patch(file.as_str(), &text).map_err(|error| config_error(&error))?;
        if file.file_stem() != Some(patch.name.as_str()) {
            return Err(Diagnostic::new(
                ErrorCode::ProfileInvalid,
                format!("`{file}` holds the patch `{}`", patch.name),
            )
            .advice("name the file after its patch"));
        }
        library.add(patch);
    }
    Ok(library)
}

/// Reads the files that patches take: `--patches fix-chat-template=FILE`.
///
/// # Errors
/// When one is missing, too large or not UTF-8.
pub(super) fn read_arguments(library: &mut PatchLibrary, settings: &Settings) -> Result<(), Diagnostic> {
    for named in &settings.patches.value.named {
        let Some(file) = &named.argument else { continue };
        let text = read_text(Utf8Path::new(file))?.ok_or_else(|| {
            Diagnostic::new(ErrorCode::PatchNotFound, format!("there is no file `{file}`"))
                .fact(settings.patches.origin.place(), format!("patch `{}` takes it", named.name))
        })?;
        library.add_argument(file.clone(), text);
    }
    Ok(())
}

fn read_text(path: &Utf8Path) -> Result<Option<String>, Diagnostic> {
    let Some(bytes) = read_given(path, MAX_PATCH_BYTES).map_err(|error| store_error(&error))? else {
        return Ok(None);
    };
    String::from_utf8(bytes).map(Some).map_err(|error| {
        Diagnostic::new(ErrorCode::SettingInvalid, format!("`{path}` is not UTF-8 text"))
            .cause(format!("the first wrong byte is at {}", error.utf8_error().valid_up_to()))
    })
}
