// SQLite with go-sqlite3: a prepared statement, and one connection, because SQLite has one writer at a time.
package main

import (
	"context"
	"database/sql"
	"log"
	"os"
	"strings"

	_ "github.com/mattn/go-sqlite3"
)

func main() {
	file := strings.TrimPrefix(os.Getenv("PLANTS_STORE"), "sqlite:///")
	database, err := sql.Open("sqlite3", "file:"+file+"?_journal_mode=WAL&_synchronous=FULL")
	if err != nil {
		log.Fatal(err)
	}
	database.SetMaxOpenConns(1)
	statement, err := database.Prepare(insert)
	if err != nil {
		log.Fatal(err)
	}
	serve(func(ctx context.Context, plant Plant) (int64, error) {
		result, err := statement.ExecContext(ctx, *plant.ID, *plant.Name, plant.Tag)
		if err != nil {
			return 0, err
		}
		return result.RowsAffected()
	})
}
