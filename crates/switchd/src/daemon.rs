//! The switch proper.

use std::rc::Rc;

use crate::Shell;

/// Runs the switch until it is asked to end. An error ends the daemon with status 1.
pub async fn run(shell: Rc<Shell>) -> anyhow::Result<()> {
    shell.ready();
    shell.exit_requested().await;
    Ok(())
}
