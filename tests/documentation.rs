//! What is documented is what is true: the README's tables, the help, the JSON shapes.

#![expect(clippy::panic, reason = "tests end with it")]

use clap::CommandFactory as _;
use kdeploy::cli::Cli;
use kdeploy::config::env_vars::ENV_VARS;
use kdeploy::report::schema::{
    BenchBody, DownBody, Event, ExportBody, LogsBody, PatchBody, PlanBody, QuickstartBody, ReapBody,
    SmokeBody, StatusBody, UpBody,
};
use kdeploy::report::{Envelope, ErrorCode, Exit, Failure};

fn readme() -> String {
    std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("README.md")
}

/// Rows of the README's table under a heading, as trimmed cells.
fn table(heading: &str) -> Vec<Vec<String>> {
    let text = readme();
    let section =
        text.split(&format!("\n## {heading}\n")).nth(1).unwrap_or_else(|| panic!("no section `{heading}`"));
    let rows: Vec<Vec<String>> = section
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect())
        .collect();
    assert!(!rows.is_empty(), "no table under `{heading}`");
    rows
}

#[test]
fn the_readme_lists_every_exit_code() {
    let expected: Vec<Vec<String>> = Exit::TABLE
        .iter()
        .map(|(exit, meaning)| vec![exit.code().to_string(), meaning.replace('`', "")])
        .collect();
    assert_eq!(table("Exit codes"), expected);
}

#[test]
fn the_readme_lists_every_error_code() {
    let expected: Vec<Vec<String>> = ErrorCode::ALL
        .iter()
        .map(|code| {
            vec![code.name().to_owned(), code.exit().code().to_string(), code.meaning().replace('`', "")]
        })
        .collect();
    assert_eq!(table("Error codes"), expected);
}

#[test]
fn the_readme_lists_every_variable() {
    let expected: Vec<Vec<String>> =
        ENV_VARS.iter().map(|(name, meaning)| vec![(*name).to_owned(), meaning.replace('`', "")]).collect();
    assert_eq!(table("Environment"), expected);
}

#[test]
fn every_variable_in_the_help_is_documented() {
    let mut help = String::new();
    let mut root = Cli::command();
    root.build();
    for command in root.get_subcommands_mut() {
        help += &command.render_long_help().to_string();
    }
    let mentioned = help.match_indices("KDEPLOY_").map(|(at, _)| {
        let rest = &help[at..];
        let end = rest.find(|c: char| !(c.is_ascii_uppercase() || c == '_')).unwrap_or(rest.len());
        &rest[..end]
    });
    let mut seen = 0;
    for name in mentioned {
        seen += 1;
        assert!(
            ENV_VARS.iter().any(|(known, _)| *known == name),
            "{name} is in the help and not in the table"
        );
    }
    assert!(seen > 10);
}

#[test]
fn the_readme_has_exactly_two_set_up_commands() {
    let text = readme();
    let start = text.split("\n## Start here\n").nth(1).expect("a section `Start here`");
    let section = start.split("\n## ").next().expect("its text");
    let commands: Vec<&str> = section
        .split("```sh\n")
        .skip(1)
        .flat_map(|block| block.split("```").next().unwrap_or_default().lines())
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .collect();
    assert_eq!(commands, ["cargo run --release -- quickstart", "bash tests/run.sh"]);
    let ci = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/.ci/run")).expect(".ci/run");
    assert!(ci.contains(commands[1]), ".ci/run runs the test command");
}

/// The whole help, so that a change of the command line is seen and meant.
#[test]
fn the_command_line_is_reviewed() {
    let mut text = String::new();
    let mut root = Cli::command().term_width(100);
    root.build();
    for command in root.get_subcommands_mut().filter(|command| !command.is_hide_set()) {
        let help = command.render_help();
        text += &format!("=== {}\n{help}\n", command.get_name());
    }
    insta::assert_snapshot!("help", text);
}

/// The shape of every document; a change raises its version or only adds a field.
#[test]
fn the_json_shapes_are_reviewed() {
    macro_rules! shape {
        ($name:literal, $body:ty) => {
            insta::assert_json_snapshot!($name, schemars::schema_for!($body));
        };
    }
    shape!("bench", Envelope<BenchBody>);
    shape!("down", Envelope<DownBody>);
    shape!("error", Envelope<Failure>);
    shape!("event", Event);
    shape!("export", Envelope<ExportBody>);
    shape!("logs", Envelope<LogsBody>);
    shape!("patch", Envelope<PatchBody>);
    shape!("plan", Envelope<PlanBody>);
    shape!("quickstart", Envelope<QuickstartBody>);
    shape!("reap", Envelope<ReapBody>);
    shape!("smoke", Envelope<SmokeBody>);
    shape!("status", Envelope<StatusBody>);
    shape!("up", Envelope<UpBody>);
}
